"""What every check says when it may not judge."""

from __future__ import annotations

from collections.abc import Sequence

from lossguard.checks.base import CheckInput
from lossguard.records import CheckResult, Request, Verdict


def all_greedy(requests: Sequence[Request]) -> bool:
    """Whether every request (and at least one) decodes greedily."""
    return bool(requests) and all(request.sampling.is_greedy for request in requests)


def inconclusive(check: str, reason: str) -> CheckResult:
    """INCONCLUSIVE with its reason and nothing else to show."""
    return CheckResult(check=check, verdict=Verdict.INCONCLUSIVE, summary=reason, evidence={"reason": reason})


def blocked(check: str, given: CheckInput) -> CheckResult | None:
    """The INCONCLUSIVE result if nothing can be judged: no tokens, arms out of step, or unusable thresholds."""
    if (problem := given.thresholds.problems.get(check)) is not None:
        return inconclusive(check, problem)
    for arm in (given.candidate, given.stock):
        if len(arm.scores.offsets) != len(given.requests) + 1 or len(arm.outputs) != len(given.requests):
            return inconclusive(
                check, f"{arm.name}: replies and scores do not match the {len(given.requests)} requests"
            )
        if arm.scores.num_tokens == 0:
            return inconclusive(check, f"{arm.name} served no token")
    return None
