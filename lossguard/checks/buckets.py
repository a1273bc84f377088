"""The buckets check: is there a part of the output in which the candidate is worse than stock?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lossguard.checks.base import Arm, BoolArray, CheckInput, FloatArray, IntArray
from lossguard.checks.bucket_masks import Bucket, buckets
from lossguard.checks.bucket_tests import (
    Standardised,
    rate_excess,
    rate_p_values,
    standardised_excess,
    standardised_p_value,
)
from lossguard.checks.clusters import TokenColumn, cluster_of_requests, paired_sums, request_of_tokens
from lossguard.checks.delta import delta_per_token, is_mismatch, top_two_gap
from lossguard.checks.events import EventStatus, judge_requests
from lossguard.checks.multiplicity import adjusted_p_values
from lossguard.checks.problems import all_greedy, blocked
from lossguard.checks.proportions import conditional_test, counts
from lossguard.checks.table_text import plural, points
from lossguard.records import CheckResult, Request, Verdict

BUCKET_Q = 0.01
MINIMUM_EVENTS = 5
MINIMUM_MISMATCHES = 20
_DIFFICULTY = np.array([0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0])  # of top-2 gap over delta


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTest:
    """One test of the family: a bucket's rate or its events."""

    bucket: str
    kind: str  # "rate" or "event"
    p_value: float
    num_candidate: int  # mismatches, or requests with an unexplained event
    num_stock: int
    floor: int
    excess: float | None = None  # of the candidate's rate, a fraction of the bucket's tokens; None for events

    def can_fail(self, margin: float) -> bool:
        """Whether a discovery here is a reason to fail: over the floor and, for a rate, over the rate rule's margin.

        A margin that holds for all tokens but not for half of them would be none: with enough tokens any excess
        over 0 becomes a discovery.
        """
        return self.num_candidate >= self.floor and (self.excess is None or self.excess > margin)


class BucketsCheck:
    """Rates and events by output position, prompt length, prompt set, finish token and telemetry.

    Covered: faults behind a position threshold, in one prompt set, at the end, after rejection or preemption.
    Not covered: buckets with few events or mismatches; buckets that no telemetry names.
    """

    name: str = "buckets"
    covers: str = "faults in one part of the output: positions, prompt lengths, sets, finish, telemetry"
    does_not_cover: str = "parts with under 5 events and 20 mismatches; parts that no telemetry names"

    def applies(self, requests: Sequence[Request]) -> bool:
        """Greedy requests only."""
        return all_greedy(requests)

    def run(self, given: CheckInput) -> CheckResult:
        """FAIL if a bucket is a discovery at q = 0.01, over the floor and over the margin; else a note."""
        if (refusal := blocked(self.name, given)) is not None:
            return refusal
        found = buckets(given)
        return _result(found, [*_rate_tests(given, found), *_event_tests(given, found)], given.thresholds.margin)


def _rate_tests(given: CheckInput, found: Sequence[Bucket]) -> list[BucketTest]:
    cluster = cluster_of_requests(given.requests)
    wrong = [is_mismatch(arm.scores, given.thresholds) for arm in (given.candidate, given.stock)]
    cells = [_cells(arm, given, cluster) for arm in (given.candidate, given.stock)]
    tests = []
    for bucket in found:
        if bucket.stock is None:
            table = _standardised(cells, wrong, bucket.candidate, int(cluster.max()) + 1)
            p_value, excess = standardised_p_value(table), standardised_excess(table)
            num_stock = int(wrong[1].sum())
        else:
            sums = _bucket_sums(given, bucket, wrong, cluster)
            p_value, excess = float(rate_p_values(sums)[0]), float(rate_excess(sums)[0])
            num_stock = int((wrong[1] & bucket.stock).sum())
        tests.append(
            BucketTest(
                bucket=bucket.name,
                kind="rate",
                p_value=p_value,
                num_candidate=int((wrong[0] & bucket.candidate).sum()),
                num_stock=num_stock,
                floor=MINIMUM_MISMATCHES,
                excess=excess,
            )
        )
    return tests


def _bucket_sums(given: CheckInput, bucket: Bucket, wrong: Sequence[BoolArray], cluster: IntArray) -> Any:
    inside = (bucket.candidate, bucket.stock if bucket.stock is not None else wrong[1])
    arms = (given.candidate.scores, given.stock.scores)
    hits = paired_sums(
        cluster,
        *(TokenColumn(scores=arms[side], values=wrong[side] & inside[side]) for side in (0, 1)),
    )
    sizes = paired_sums(cluster, *(TokenColumn(scores=arms[side], values=inside[side]) for side in (0, 1)))
    return type(hits)(
        candidate=hits.candidate, candidate_tokens=sizes.candidate, stock=hits.stock, stock_tokens=sizes.stock
    )


def _cells(arm: Arm, given: CheckInput, cluster: IntArray) -> IntArray:
    """[T] index of the (cluster, difficulty bin) that each token falls in."""
    delta = np.maximum(delta_per_token(arm.scores, given.thresholds), 1e-12)
    difficulty = np.searchsorted(_DIFFICULTY, top_two_gap(arm.scores) / delta)
    return np.asarray(cluster[request_of_tokens(arm.scores)] * (len(_DIFFICULTY) + 1) + difficulty)


def _standardised(
    cells: Sequence[IntArray], wrong: Sequence[BoolArray], inside: BoolArray, num_clusters: int
) -> Standardised:
    num_bins = len(_DIFFICULTY) + 1

    def table(side: int, mask: BoolArray) -> FloatArray:
        filled = np.bincount(cells[side][mask], minlength=num_clusters * num_bins)
        return filled.astype(np.float64).reshape(num_clusters, num_bins)

    return Standardised(
        mismatches=table(0, wrong[0] & inside),
        tokens=table(0, inside),
        stock_mismatches=table(1, wrong[1]),
        stock_tokens=table(1, np.ones_like(wrong[1])),
    )


def _event_tests(given: CheckInput, found: Sequence[Bucket]) -> list[BucketTest]:
    """Certain ones only: the candidate's audited and unexplained, against all of stock's not known as explained."""
    candidate = _event_tokens(given.candidate, given, (EventStatus.UNEXPLAINED,))
    stock = _event_tokens(given.stock, given, (EventStatus.UNEXPLAINED, EventStatus.UNAUDITED))
    tests = []
    for bucket in found:
        of_stock = np.ones(given.stock.scores.num_tokens, np.bool_) if bucket.stock is None else bucket.stock
        numbers = int(bucket.candidate[candidate].sum()), int(of_stock[stock].sum())
        exposures = _num_requests(given.candidate, bucket.candidate), _num_requests(given.stock, of_stock)
        p_value = 1.0
        if numbers[0] and exposures[1]:
            p_value = float(conditional_test(counts(numbers[0], exposures[0], numbers[1], exposures[1])))
        tests.append(
            BucketTest(
                bucket=bucket.name,
                kind="event",
                p_value=p_value,
                num_candidate=numbers[0],
                num_stock=numbers[1],
                floor=MINIMUM_EVENTS,
            )
        )
    return tests


def _event_tokens(arm: Arm, given: CheckInput, statuses: tuple[EventStatus, ...]) -> IntArray:
    """Token index of the deciding event of each request with such a status."""
    judged = [request for request in judge_requests(arm, given.thresholds) if request.status in statuses]
    starts = arm.scores.offsets
    places = [int(starts[request.events.request_index]) + request.first_position for request in judged]
    return np.array(places, dtype=np.int64)


def _num_requests(arm: Arm, inside: BoolArray) -> int:
    return len(np.unique(request_of_tokens(arm.scores)[inside]))


def _result(found: Sequence[Bucket], tests: Sequence[BucketTest], margin: float) -> CheckResult:
    adjusted = adjusted_p_values(np.array([test.p_value for test in tests]))
    hits = [(test, float(q)) for test, q in zip(tests, adjusted, strict=True) if q <= BUCKET_Q]
    failing = [(test, q) for test, q in hits if test.can_fail(margin)]
    smallest = float(adjusted.min(initial=1.0))
    summary = f"{plural(len(found), 'bucket')}, smallest q={smallest:.2g}"
    if failing:
        summary = "; ".join(_sentence(test, q) for test, q in failing[:3])
    notes = [_sentence(test, q) for test, q in failing]
    notes += [f"{_sentence(test, q)}; {_why_not(test, margin)}" for test, q in hits if (test, q) not in failing]
    return CheckResult(
        check="buckets",
        verdict=Verdict.FAIL if failing else Verdict.PASS,
        summary=summary,
        bound=f"q={smallest:.2g}",
        limit=f"q={BUCKET_Q:g}",
        evidence={
            "num_buckets": len(found),
            "smallest_q": smallest,
            "tests": [
                {
                    "bucket": test.bucket,
                    "kind": test.kind,
                    "p": test.p_value,
                    "q": float(q),
                    "num_candidate": test.num_candidate,
                    "num_stock": test.num_stock,
                    "excess": test.excess,
                }
                for test, q in zip(tests, adjusted, strict=True)
            ],
        },
        notes=tuple(notes),
    )


def _why_not(test: BucketTest, margin: float) -> str:
    if test.num_candidate < test.floor:
        return f"under the floor of {test.floor}"
    return f"{points(test.excess or 0.0)}, within the margin of {points(margin)}"


def _sentence(test: BucketTest, q: float) -> str:
    what = "mismatches" if test.kind == "rate" else "requests with an unexplained event"
    return f"{test.bucket}: {test.num_candidate} {what} (stock {test.num_stock}), q={q:.2g}"
