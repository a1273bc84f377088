"""Power of a run, from stock's calibration and the run's own sizes, before any candidate is judged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lossguard.checks.base import Arm, Thresholds
from lossguard.checks.burst import request_counts
from lossguard.checks.clusters import MINIMUM_CLUSTERS
from lossguard.checks.describe import intraclass_correlation
from lossguard.checks.lossless_replicates import LosslessInput, judge_replicates
from lossguard.checks.simulate import Simulation, simulate_pairs
from lossguard.records import Request

__all__ = [
    "Power",
    "PowerInput",
    "Reach",
    "Simulation",
    "detectable_excess",
    "estimate_power",
    "estimate_reach",
    "simulate_pairs",
]

NUM_REPLICATES = 400
_Z_PASS, _Z_FAIL, _Z_POWER = 1.6449, 2.3263, 1.2816  # one-sided 5 %, 1 %, and 90 % power
_BISECTIONS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerInput:
    """Both calibration services of stock, and the sizes of the run to come."""

    requests: Sequence[Request]
    stock: Arm
    recomposed: Arm
    thresholds: Thresholds
    num_requests: int
    mean_tokens: float
    seed: int
    num_replicates: int = NUM_REPLICATES
    num_clusters: int | None = None  # of the run's prompts; None: as many for each request as calibration has


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What this run can tell. Fractions are over resampled comparisons of stock with itself."""

    detectable_excess_points: float  # smallest true excess that gets FAIL 90 times in 100; 100 if none does
    pass_given_lossless_fraction: float
    fail_given_lossless_fraction: float
    pass_fraction_by_check: Mapping[str, float]
    num_replicates: int
    num_requests: int
    num_tokens: int
    rho: float
    deff: float
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {**asdict(self), "reasons": list(self.reasons)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The part of the power that has a closed form; fields as in ``Power``."""

    detectable_excess_points: float
    num_tokens: int
    rho: float
    deff: float


def estimate_reach(given: PowerInput) -> Reach:
    """Smallest detectable excess in closed form: at once, where resampling takes a while."""
    rho = _rho(given)
    deff = 1 + max(given.mean_tokens - 1, 0.0) * rho
    num_tokens = round(given.num_requests * given.mean_tokens)
    rate = max(given.thresholds.stock_rate, 0.5 / max(given.thresholds.num_tokens, 1))
    excess = detectable_excess(rate, given.thresholds.margin, max(num_tokens, 1) / deff)
    return Reach(detectable_excess_points=100 * excess, num_tokens=num_tokens, rho=rho, deff=deff)


def estimate_power(given: PowerInput) -> Power:
    """Smallest detectable excess in closed form, P(PASS | lossless) by resampling stock against itself."""
    reach = estimate_reach(given)
    result = judge_replicates(
        LosslessInput(
            requests=given.requests,
            stock=given.stock,
            recomposed=given.recomposed,
            thresholds=given.thresholds,
            num_requests=given.num_requests,
            seed=given.seed,
            num_replicates=given.num_replicates,
            num_clusters=given.num_clusters,
        )
    )
    return Power(
        detectable_excess_points=reach.detectable_excess_points,
        pass_given_lossless_fraction=float(result.passed.mean()),
        fail_given_lossless_fraction=float(result.failed.mean()),
        pass_fraction_by_check={name: float(passed.mean()) for name, passed in result.passed_by_check.items()},
        num_replicates=given.num_replicates,
        num_requests=given.num_requests,
        num_tokens=reach.num_tokens,
        rho=reach.rho,
        deff=reach.deff,
        reasons=_reasons(given, result.num_clusters),
    )


def _rho(given: PowerInput) -> float:
    """The larger of both calibration services' intraclass correlations."""
    return max(
        intraclass_correlation(counts.mismatches, counts.tokens)
        for counts in (request_counts(arm, given.thresholds) for arm in (given.stock, given.recomposed))
    )


def detectable_excess(rate: float, margin: float, num_effective_tokens: float) -> float:
    """Smallest true excess (a fraction) that the rate check FAILs 90 times in 100; 1 if none.

    Normal approximation with independent arms of ``num_effective_tokens`` each: the estimate must exceed both
    z(99 %) standard errors (lower bound over 0) and the margin less z(95 %) standard errors (upper bound over it).
    """

    def is_detected(excess: float) -> bool:
        shares = (min(rate + excess, 1.0), rate)
        error = math.sqrt(sum(share * (1 - share) for share in shares) / num_effective_tokens)
        return excess - _Z_POWER * error >= max(_Z_FAIL * error, margin - _Z_PASS * error)

    low, high = 0.0, 1.0
    if not is_detected(high):
        return 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_detected(middle) else (middle, high)
    return high


def _reasons(given: PowerInput, num_clusters: int) -> tuple[str, ...]:
    reasons = [
        f"P(PASS | lossless): {given.num_replicates} runs of {num_clusters} clusters drawn from the calibration's, "
        "stock against stock at another batch composition, arms exchanged at random; events count as explained",
    ]
    if num_clusters < MINIMUM_CLUSTERS:
        reasons.append(f"under {MINIMUM_CLUSTERS} clusters no run can PASS")
    calibration_mean = given.stock.scores.num_tokens / max(len(given.requests), 1)
    if given.mean_tokens > 0 and not 0.8 <= calibration_mean / given.mean_tokens <= 1.25:
        reasons.append(
            f"calibration replies have {calibration_mean:.0f} tokens on average, the run's {given.mean_tokens:.0f}: "
            "P(PASS | lossless) is for the former"
        )
    return tuple(reasons)
