"""The usage check: do the counters that a server reports fit what it sent?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.problems import blocked, inconclusive
from lossguard.checks.reported import num_listed
from lossguard.checks.table_text import plural
from lossguard.checks.text import num_text_level
from lossguard.records import CheckResult, Request, ServedOutput, Verdict

PROMPT_DIFFERS = "prompt_differs"
"""Telemetry column: 1 where the server says that it answered another prompt than the one that was sent."""
_LISTED = 20


class UsageCheck:
    """Reported counts against the ids that were sent and received.

    Covered: prompt, completion, reasoning and cached tokens; a prompt that was changed on the way.
    Not covered: what the counters are used for (bills, limits); counters of replies that came as text only.
    """

    name: str = "usage"
    covers: str = "usage counters, and whether the prompt that was sent is the one that was answered"
    does_not_cover: str = "counters of text-only replies"

    def applies(self, requests: Sequence[Request]) -> bool:
        """Greedy and sampled requests alike."""
        return bool(requests)

    def has_evidence(self, given: CheckInput) -> bool:
        """Whether the candidate reported any counters, or stock did."""
        return any(output.usage is not None for arm in (given.candidate, given.stock) for output in arm.outputs)

    def run(self, given: CheckInput) -> CheckResult:
        """FAIL on any violation of the candidate; stock's are counted beside it."""
        if (reason := blocked(self.name, given)) is not None:
            return reason
        if num_text_level(given.candidate) or num_text_level(given.stock):
            return inconclusive(self.name, "replies known only as text have no ids to count")
        ours, theirs = (_violations(given.requests, arm) for arm in (given.candidate, given.stock))
        missing = sum(output.usage is None for output in given.candidate.outputs)
        if missing and all(output.usage is not None for output in given.stock.outputs):
            ours.append(("", f"{plural(missing, 'reply')} without counters, stock's all have them"))
        return _result(given, ours, theirs)


def _violations(requests: Sequence[Request], arm: Arm) -> list[tuple[str, str]]:
    pairs = zip(requests, arm.outputs, strict=False)
    return [(request.id, text) for request, output in pairs for text in _violations_of(request, output)]


def _violations_of(request: Request, output: ServedOutput) -> list[str]:
    broken = []
    if any(output.telemetry.get(PROMPT_DIFFERS, ())):
        broken.append("the server answered another prompt than the one that was sent")
    usage = output.usage
    if usage is None:
        return broken
    num_prompt, num_reply = len(request.prompt_ids), len(output.ids)
    if usage.prompt_tokens != num_prompt:
        broken.append(f"prompt_tokens {usage.prompt_tokens}, sent {num_prompt}")
    if usage.completion_tokens not in {num_listed(output), num_reply}:
        broken.append(f"completion_tokens {usage.completion_tokens}, received {num_reply}")
    if usage.reasoning_tokens is not None and not 0 <= usage.reasoning_tokens <= num_reply:
        broken.append(f"reasoning_tokens {usage.reasoning_tokens} of {num_reply}")
    if usage.cached_tokens is not None and not 0 <= usage.cached_tokens <= num_prompt:
        broken.append(f"cached_tokens {usage.cached_tokens} of a prompt of {num_prompt}")
    return broken


def _result(given: CheckInput, ours: Sequence[tuple[str, str]], theirs: Sequence[tuple[str, str]]) -> CheckResult:
    numbers = [len({request_id for request_id, _ in found}) for found in (ours, theirs)]
    summary = f"{plural(len(given.requests), 'reply')} counted"
    if ours:
        summary = f"{plural(numbers[0], 'reply')} with wrong counters: {ours[0][1]} (stock {numbers[1]})"
    evidence: dict[str, Any] = {
        "num_violating_requests": numbers[0],
        "num_stock_violating_requests": numbers[1],
        "examples": [{"request_id": request_id, "detail": text} for request_id, text in ours[:_LISTED]],
    }
    return CheckResult(
        check="usage",
        verdict=Verdict.FAIL if ours else Verdict.PASS,
        summary=summary,
        candidate=str(numbers[0]),
        stock=str(numbers[1]),
        limit="0",
        evidence=evidence,
        notes=tuple(f"request {request_id}: {text}" for request_id, text in ours[:5]),
    )
