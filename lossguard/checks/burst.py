"""The burst check: faults that sit in few requests, which an average over prompts cannot show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lossguard.checks.base import Arm, CheckInput, Thresholds
from lossguard.checks.burst_finding import BurstFinding, BurstInput, RequestCounts, find_bursts
from lossguard.checks.clusters import cluster_of_requests, request_sums
from lossguard.checks.delta import is_mismatch
from lossguard.checks.problems import all_greedy, blocked
from lossguard.checks.seeds import stream_seed
from lossguard.checks.table_text import plural
from lossguard.records import CheckResult, Request, Verdict

_LISTED = 20


class BurstCheck:
    """Requests whose mismatch count is improbable under stock's beta-binomial.

    Covered: faults concentrated in a few requests (a corrupted slot, one bad cache hit).
    Not covered: requests with fewer than 3 mismatches; excesses spread thinly over requests (rate).
    """

    name: str = "burst"
    covers: str = "requests with far more mismatches than stock's own spread between requests"
    does_not_cover: str = "fewer than 3 mismatches in a request; excesses spread over many requests"

    def applies(self, requests: Sequence[Request]) -> bool:
        """Greedy requests only."""
        return all_greedy(requests)

    def run(self, given: CheckInput) -> CheckResult:
        """FAIL if counted flags beat stock's or one alone is beyond chance; flags that do not are a note."""
        if (refusal := blocked(self.name, given)) is not None:
            return refusal
        finding = find_bursts(
            BurstInput(
                candidate=request_counts(given.candidate, given.thresholds),
                stock=request_counts(given.stock, given.thresholds),
                calibration=request_counts(given.calibration, given.thresholds),
                cluster=cluster_of_requests(given.requests),
                seed=stream_seed(given.seed, self.name),
            )
        )
        return _result(given, finding)


def request_counts(arm: Arm, thresholds: Thresholds) -> RequestCounts:
    """Mismatches and tokens of each request of an arm."""
    return RequestCounts(
        mismatches=request_sums(is_mismatch(arm.scores, thresholds), arm.scores),
        tokens=np.diff(arm.scores.offsets).astype(np.float64),
    )


def _result(given: CheckInput, finding: BurstFinding) -> CheckResult:
    verdict = Verdict.FAIL if finding.fails else Verdict.PASS
    num_flagged, num_counted = int(finding.flagged.sum()), int(finding.counted.sum())
    summary = f"{plural(num_flagged, 'request')} flagged"
    if num_flagged:
        summary += f", {num_counted} counted (stock {finding.num_stock_counted})"
    notes = _notes(finding, num_flagged, verdict)
    return CheckResult(
        check="burst",
        verdict=verdict,
        summary=summary,
        candidate=str(num_counted),
        stock=str(finding.num_stock_counted),
        evidence={
            "num_flagged": num_flagged,
            "num_counted": num_counted,
            "num_stock_counted": finding.num_stock_counted,
            "num_candidate_prompts": finding.num_candidate_prompts,
            "num_stock_prompts": finding.num_stock_prompts,
            "sign_test_p": finding.sign_p,
            "smallest_p": float(finding.candidate_p.min(initial=1.0)),
            "smallest_counted_p": finding.smallest_counted_p,
            "flagged": _flagged_requests(given, finding),
        },
        notes=notes,
    )


def _notes(finding: BurstFinding, num_flagged: int, verdict: Verdict) -> tuple[str, ...]:
    if num_flagged and verdict is Verdict.PASS:
        return ("flagged requests exist, but not more of them than chance and stock's own give",)
    return ()


def _flagged_requests(given: CheckInput, finding: BurstFinding) -> list[dict[str, object]]:
    mismatches = request_sums(is_mismatch(given.candidate.scores, given.thresholds), given.candidate.scores)
    worst = [index for index in np.argsort(finding.candidate_p, kind="stable") if finding.flagged[index]]
    return [
        {
            "request_id": given.requests[index].id,
            "mismatches": int(mismatches[index]),
            "tokens": int(np.diff(given.candidate.scores.offsets)[index]),
            "p": float(finding.candidate_p[index]),
            "counted": bool(finding.counted[index]),
        }
        for index in worst[:_LISTED]
    ]
