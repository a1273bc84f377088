"""Faults between the model and the client: tokens lost, doubled, invented, or under a wrong label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lossguard.records import FinishReason, ReportedLogprobs, Request, ServedOutput
from lossguard_suites.adversarial.faults.drawing import chance, draw, is_in_share

NO_SUCH_ID = 1_061_800_448


def lost_at_blocks(
    output: ServedOutput, request: Request, *, tokens: int = 2, block: int = 64, seed: int = 0
) -> ServedOutput:
    """F40. At every multiple of ``block`` the stream lacks ``tokens`` tokens that the model goes on from."""
    kept = [at for at in range(len(output.ids)) if at < block or at % block >= tokens]
    return with_positions(output, kept)


def lost_at_resume(
    output: ServedOutput, request: Request, *, share: float = 1.0, first: int = 4, seed: int = 0
) -> ServedOutput:
    """F44. One token is lost where a reply was preempted and resumed: once in a ``share`` of replies."""
    return _at_resume(output, request, share=share, first=first, seed=seed, is_lost=True)


def doubled_at_resume(
    output: ServedOutput, request: Request, *, share: float = 1.0, first: int = 4, seed: int = 0
) -> ServedOutput:
    """F44b. One token comes twice where a reply was preempted and resumed."""
    return _at_resume(output, request, share=share, first=first, seed=seed, is_lost=False)


def _at_resume(
    output: ServedOutput, request: Request, *, share: float, first: int, seed: int, is_lost: bool
) -> ServedOutput:
    length = len(output.ids)
    room = length - 1 - first  # the last token ends the reply, and does so still
    is_full = not is_lost and length == request.sampling.max_tokens and output.finish_reason is FinishReason.STOP
    if room <= 0 or is_full or not is_in_share(request, share=share, seed=seed):
        return output
    at = first + draw(room, "resume", seed, request.id, request.repeat_id)
    kept = [*range(at), *range(at + 1, length)] if is_lost else [*range(at + 1), *range(at, length)]
    changed = with_positions(output, kept[: request.sampling.max_tokens])
    preempted = tuple(float(position == at) for position in range(len(changed.ids)))
    return replace(changed, telemetry={**changed.telemetry, "preempted": preempted})


def impossible_id(output: ServedOutput, request: Request, *, probability: float = 0.001, seed: int = 0) -> ServedOutput:
    """F54. A sampler that falls off its table: an id that no vocabulary has, with ``probability`` a token."""
    drawn = (chance("impossible", seed, request.id, request.repeat_id, at) for at in range(len(output.ids) - 1))
    wrong = [at for at, value in enumerate(drawn) if value < probability]
    ids = tuple(NO_SUCH_ID if at in wrong else token for at, token in enumerate(output.ids))
    return replace(output, ids=ids) if wrong else output


def past_the_stop(output: ServedOutput, request: Request, *, tokens: int = 3, seed: int = 0) -> ServedOutput:
    """F36. The stop id fell inside a block of drafts: up to ``tokens`` more of the block are served after it.

    They are the tokens that came before it, which is what a drafter that looks for repeats would have drafted.
    """
    room = min(tokens, request.sampling.max_tokens - len(output.ids), len(output.ids) - 1)
    if output.finish_reason is not FinishReason.STOP or room <= 0:
        return output
    return with_positions(output, [*range(len(output.ids)), *range(len(output.ids) - 1 - room, len(output.ids) - 1)])


def mislabelled_end(output: ServedOutput, request: Request, *, share: float = 1.0, seed: int = 0) -> ServedOutput:
    """O2. A reply that ended at a stop id is reported as having reached its limit."""
    if output.finish_reason is not FinishReason.STOP or not is_in_share(request, share=share, seed=seed):
        return output
    return replace(output, finish_reason=FinishReason.LENGTH, stop_reason=None)


def with_positions(output: ServedOutput, kept: Sequence[int]) -> ServedOutput:
    """The output with the tokens of these positions, in this order, and every column with them."""
    if list(kept) == list(range(len(output.ids))):
        return output
    columns = {
        name: tuple(column[at] for at in kept) if len(column) == len(output.ids) else column
        for name, column in output.telemetry.items()
    }
    return replace(
        output,
        ids=tuple(output.ids[at] for at in kept),
        arrival_ns=tuple(output.arrival_ns[at] for at in kept) if output.arrival_ns else (),
        logprobs=None if output.logprobs is None else _logprobs_at(output.logprobs, kept),
        telemetry=columns,
    )


def _logprobs_at(reported: ReportedLogprobs, kept: Sequence[int]) -> ReportedLogprobs:
    return ReportedLogprobs(
        served=tuple(reported.served[at] for at in kept),
        top_ids=tuple(reported.top_ids[at] for at in kept) if reported.top_ids else (),
        top_logprobs=tuple(reported.top_logprobs[at] for at in kept) if reported.top_logprobs else (),
    )
