"""F41: a reply that lacks its tail and is reported as full length."""

from __future__ import annotations

from dataclasses import replace

from lossguard.records import FinishReason, ReportedLogprobs, Request, ServedOutput
from lossguard_suites.adversarial.faults.drawing import is_hit


def cut_replies(
    output: ServedOutput, request: Request, *, tokens: int = 4, every: int = 1, seed: int = 0
) -> ServedOutput:
    """F41. Drops the last ``tokens`` tokens, leaving at least one; replies of one token stay as they are."""
    keep = max(1, len(output.ids) - tokens)
    if keep >= len(output.ids) or not is_hit(request, every=every, seed=seed):
        return output
    return replace(
        output,
        ids=output.ids[:keep],
        finish_reason=FinishReason.LENGTH,
        stop_reason=None,
        arrival_ns=output.arrival_ns[:keep],
        logprobs=None if output.logprobs is None else _cut_logprobs(output.logprobs, keep),
        telemetry={
            name: column[:keep] if len(column) == len(output.ids) else column
            for name, column in output.telemetry.items()
        },
    )


def _cut_logprobs(reported: ReportedLogprobs, keep: int) -> ReportedLogprobs:
    return ReportedLogprobs(
        served=reported.served[:keep],
        top_ids=reported.top_ids[:keep],
        top_logprobs=reported.top_logprobs[:keep],
    )
