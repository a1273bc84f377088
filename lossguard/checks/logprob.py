"""The logprob check: are the reported log-probabilities those of the target?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lossguard.checks.base import CheckInput
from lossguard.checks.problems import blocked, inconclusive
from lossguard.checks.reported import MINIMUM_POSITIONS, ReportedReply, reported_replies
from lossguard.checks.table_text import plural
from lossguard.records import CheckResult, Request, Verdict

FACTOR = 4.0
LEAST_LIMIT = 1e-4
"""Nats: below it lies the rounding of single precision, whatever calibration happened to show."""
_LISTED = 20


class LogprobCheck:
    """Reported against forced log-probabilities of the served tokens, and whether the reports are whole.

    Covered: log-probabilities of another distribution (after acceptance, temperature or penalties), NaN, missing rows,
    best tokens out of order or in contradiction with the served one.
    Not covered: values off by less than four times what stock's own are off by; best tokens other than the served one.
    """

    name: str = "logprob"
    covers: str = "reported log-probabilities of served tokens, their completeness and order"
    does_not_cover: str = "deviations within four times stock's own; other tokens' log-probabilities"

    def applies(self, requests: Sequence[Request]) -> bool:
        """Greedy and sampled requests alike."""
        return bool(requests)

    def has_evidence(self, given: CheckInput) -> bool:
        """Whether either arm reported any."""
        return any(output.logprobs is not None for arm in (given.candidate, given.stock) for output in arm.outputs)

    def run(self, given: CheckInput) -> CheckResult:
        """FAIL for broken reports where stock's are whole, or values beyond the limit where stock's are within."""
        if (reason := blocked(self.name, given)) is not None:
            return reason
        scale = given.thresholds.logprob_nats
        if scale is None:
            few = f"stock reported fewer than {MINIMUM_POSITIONS} log-probabilities on calibration"
            return inconclusive(self.name, few)
        return _result(given, max(FACTOR * scale, LEAST_LIMIT))


def _problems(replies: Sequence[ReportedReply], num_requests: int, limit: float) -> dict[str, str]:
    """Request -> what is wrong with its report: broken, beyond the limit, or not there."""
    found: dict[str, str] = {}
    for reply in replies:
        if (broken := reply.broken) is not None:
            found[reply.request_id] = broken
        elif reply.differences.size and reply.differences.max() > limit:
            position = int(np.argmax(reply.differences))
            reported, forced = reply.reported[position], reply.forced[position]
            found[reply.request_id] = f"position {position}: reported {reported:.4f}, forced {forced:.4f}"
    if len(replies) != num_requests:
        found[""] = f"{num_requests - len(replies)} of {num_requests} replies report none"
    return found


def _result(given: CheckInput, limit: float) -> CheckResult:
    candidate, stock = (tuple(reported_replies(arm, given.requests)) for arm in (given.candidate, given.stock))
    ours = _problems(candidate, len(given.requests), limit)
    theirs = _problems(stock, len(given.requests), limit) if stock else {}  # a recorded stock keeps none
    largest = [_largest(replies) for replies in (candidate, stock)]
    verdict, summary = _verdict(ours, theirs, largest[0])
    evidence: dict[str, Any] = {
        "limit_nats": limit,
        "largest_difference_nats": largest[0],
        "largest_stock_difference_nats": largest[1],
        "num_requests_with_problems": len(ours),
        "num_stock_requests_with_problems": len(theirs),
        "examples": [{"request_id": key, "detail": text} for key, text in list(ours.items())[:_LISTED]],
    }
    return CheckResult(
        check="logprob",
        verdict=verdict,
        summary=summary,
        candidate=f"{largest[0]:.2g} nats",
        stock=f"{largest[1]:.2g} nats",
        limit=f"{limit:.2g} nats",
        evidence=evidence,
        notes=tuple(f"request {key}: {text}" if key else text for key, text in list(ours.items())[:5]),
    )


def _verdict(ours: dict[str, str], theirs: dict[str, str], largest: float) -> tuple[Verdict, str]:
    if not ours:
        return Verdict.PASS, f"max {largest:.2g} nats, ranks complete"
    if theirs:
        both = f"{plural(len(ours), 'report')} off or broken, but stock's own too ({len(theirs)})"
        return Verdict.INCONCLUSIVE, both
    return Verdict.FAIL, f"{plural(len(ours), 'report')} off or broken (stock 0)"


def _largest(replies: Sequence[ReportedReply]) -> float:
    return max((float(reply.differences.max()) for reply in replies if reply.differences.size), default=0.0)
