"""The support check: was a token served that the request's own top-k, top-p or min-p rules out?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from lossguard.checks.base import Arm, BoolArray, CheckInput
from lossguard.checks.bounds import Bounds, Comparison, bounds_of
from lossguard.checks.clusters import (
    MINIMUM_CLUSTERS,
    TokenColumn,
    cluster_of_requests,
    paired_sums,
    position_of_tokens,
    request_of_tokens,
    request_sums,
)
from lossguard.checks.delta import delta_per_token
from lossguard.checks.drawn_tokens import has_sampled_columns, sampled_tokens
from lossguard.checks.events import excess_p
from lossguard.checks.problems import blocked, inconclusive
from lossguard.checks.seeds import stream_seed
from lossguard.checks.table_text import finite, percent, plural, points
from lossguard.records import CheckResult, Request, Verdict

PASS_ALPHA: Final = 0.05
FAIL_ALPHA: Final = 0.005
"""Of each of the two rules."""
MARGIN: Final = 0.001
"""Of all sampled tokens, as the least margin of the rate check: what falls on the wrong side of a cut by rounding."""
_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideTokens:
    """Tokens of one arm outside the support by more than delta, and by more than the large-margin threshold."""

    sampled: BoolArray  # [T]
    outside: BoolArray  # [T]
    far_outside: BoolArray  # [T]

    def num_far_requests(self, arm: Arm) -> int:
        """Requests with a token far outside."""
        return int((request_sums(self.far_outside, arm.scores) > 0).sum())


class SupportCheck:
    """Tokens with probability 0 under the request's own sampling.

    A token within delta of the cut may fall on either side by rounding and is no violation. The share of violations is
    compared with stock's; tokens far outside count by requests, as events do.
    Covered: filters that are not applied, applied to another distribution, or in another order.
    Not covered: filters that nobody asked for (the sampling check sees what they leave out).
    """

    name: str = "support"
    covers: str = "tokens that top-k, top-p or min-p rule out"
    does_not_cover: str = "tokens within delta of the cut"

    def applies(self, requests: Sequence[Request]) -> bool:
        """Sampled requests of which one filters."""
        return any(_filters(request) for request in requests)

    def run(self, given: CheckInput) -> CheckResult:
        """FAIL for more violations than stock's, near (beyond the margin) or far; PASS within the margin, none far."""
        if (refusal := blocked(self.name, given)) is not None:
            return refusal
        if not all(has_sampled_columns(arm.scores) for arm in (given.candidate, given.stock)):
            return inconclusive(self.name, "the scorer gives no distributions: sampled replies need one that does")
        return _result(given, *(outside_tokens(given, arm) for arm in (given.candidate, given.stock)))


def outside_tokens(given: CheckInput, arm: Arm) -> OutsideTokens:
    """Which tokens of an arm are violations."""
    assert arm.scores.support_gap is not None, "sampled columns exist together"
    sampled = sampled_tokens(given, arm)
    gap = np.where(sampled, arm.scores.support_gap, 0.0).astype(np.float64)
    return OutsideTokens(
        sampled=sampled,
        outside=gap > delta_per_token(arm.scores, given.thresholds),
        far_outside=gap > given.thresholds.event_nats,
    )


def _filters(request: Request) -> bool:
    asked = request.sampling
    return not asked.is_greedy and (asked.top_k > 0 or asked.top_p < 1.0 or asked.min_p > 0.0)


def _bounds(given: CheckInput, ours: OutsideTokens, theirs: OutsideTokens) -> Bounds:
    columns = [
        TokenColumn(scores=arm.scores, values=found.outside)
        for arm, found in ((given.candidate, ours), (given.stock, theirs))
    ]
    sums = paired_sums(cluster_of_requests(given.requests), *columns)
    return bounds_of(Comparison(sums=sums, hits=sums), stream_seed(given.seed, "support"))


def _result(given: CheckInput, ours: OutsideTokens, theirs: OutsideTokens) -> CheckResult:
    bounds = _bounds(given, ours, theirs)
    far = ours.num_far_requests(given.candidate), theirs.num_far_requests(given.stock)
    upper = float(bounds.upper(PASS_ALPHA)[0])
    num_clusters = len({request.cluster for request in given.requests})
    verdict = Verdict.combine(
        [
            _rate_verdict(upper, float(bounds.lower(FAIL_ALPHA)[0]), num_clusters),
            _far_verdict(*far, len(given.requests)),
        ]
    )
    shares = [float(found.outside.sum()) / max(int(found.sampled.sum()), 1) for found in (ours, theirs)]
    return CheckResult(
        check="support",
        verdict=verdict,
        summary=f"{plural(int(ours.outside.sum()), 'token')} outside the support (stock {int(theirs.outside.sum())}), "
        f"{plural(far[0], 'request')} with one far outside (stock {far[1]})",
        candidate=percent(shares[0]),
        stock=percent(shares[1]),
        bound=points(upper),
        limit=points(MARGIN),
        evidence={
            "num_tokens_outside": int(ours.outside.sum()),
            "num_stock_tokens_outside": int(theirs.outside.sum()),
            "num_sampled_tokens": int(ours.sampled.sum()),
            "num_requests_far_outside": far[0],
            "num_stock_requests_far_outside": far[1],
            "far_outside_nats": given.thresholds.event_nats,
            "upper_95_share": finite(upper),
            "margin_share": MARGIN,
            "num_clusters": num_clusters,
            "examples": _examples(given),
        },
    )


def _rate_verdict(upper: float, lower: float, num_clusters: int) -> Verdict:
    is_within = upper < MARGIN
    if not is_within and lower > 0:
        return Verdict.FAIL
    return Verdict.PASS if is_within and num_clusters >= MINIMUM_CLUSTERS else Verdict.INCONCLUSIVE


def _far_verdict(num_candidate: int, num_stock: int, num_requests: int) -> Verdict:
    if num_candidate <= num_stock:
        return Verdict.PASS
    return Verdict.FAIL if excess_p(num_candidate, num_stock, num_requests) < FAIL_ALPHA else Verdict.INCONCLUSIVE


def outside_places(given: CheckInput, limit: int) -> list[tuple[int, int]]:
    """(request index, position) of the candidate's tokens farthest outside their support; none without the columns."""
    scores = given.candidate.scores
    if scores.support_gap is None:
        return []
    outside = np.flatnonzero(outside_tokens(given, given.candidate).outside)
    places = outside[np.argsort(-scores.support_gap[outside], kind="stable")][:limit]
    owner, position = request_of_tokens(scores)[places], position_of_tokens(scores)[places]
    return list(zip(owner.tolist(), position.tolist(), strict=True))


def _examples(given: CheckInput) -> list[dict[str, Any]]:
    scores = given.candidate.scores
    assert scores.support_gap is not None, "sampled columns exist together"
    places = [(index, at, int(scores.offsets[index]) + at) for index, at in outside_places(given, _LISTED)]
    return [
        {
            "request_id": given.requests[index].id,
            "position": position,
            "served_id": int(scores.served_id[at]),
            "outside_nats": finite(float(scores.support_gap[at])),
        }
        for index, position, at in places
    ]
