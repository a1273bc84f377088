"""What a plan can find, before it costs anything: the minimum promotable gain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossguard.timing.base import Estimand, FloatArray, NoiseProfile
from lossguard.timing.estimator import combine, kept_launch_variance, profile_values
from lossguard.timing.launch_variance import choose_launch_rule, launch_variance
from lossguard.timing.noise import threshold_noise
from lossguard.timing.rules import promotion_threshold

POWER = 0.80
NUM_DRAWS = 20_000
_SEED = 2026_11_29


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A campaign that has not run yet."""

    num_pairs: int
    num_requests: int
    asked: float = 0.0
    outputs_diverge: bool = False
    estimand: Estimand = "population"
    heterogeneity: float = 0.0  # sd of the requests' own gains, nats; 0 for an even gain


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPower:
    """What a plan can promote, and what it takes."""

    threshold: float
    minimum_promotable_gain: float  # promoted with 80 % power
    standard_error: float  # expected, nats
    num_launches: int
    num_servings: int
    reasons: tuple[str, ...]


def minimum_promotable_gain(plan: Plan, noise: NoiseProfile) -> PlannedPower:
    """The smallest gain that this plan promotes 8 times in 10, if stock's noise is what its profile says.

    Draws pair means and request variances as the plan would see them, bounds them with the estimator itself, and takes
    the gain that lifts the 20th percentile of the lower bound to the threshold.

    Raises
    ------
    UsageError
        LG1052: a profile without totals for the throughput estimand.
    """
    bound = threshold_noise(noise, plan.estimand)
    threshold = float(
        promotion_threshold(np.asarray(bound.value), asked=plan.asked, outputs_diverge=plan.outputs_diverge)
    )
    rule, rule_reason = choose_launch_rule(plan.num_pairs)
    request_variance, request_reason = _request_variance(plan, noise)
    rng = np.random.default_rng(_SEED)
    pair_means = rng.normal(0.0, bound.rms, (NUM_DRAWS, plan.num_pairs))
    freedom = max(plan.num_requests - 1, 1)
    seen = request_variance * rng.chisquare(freedom, NUM_DRAWS) / freedom
    launch = launch_variance(pair_means, profile_values(noise, plan.estimand), rule)
    kept = kept_launch_variance(noise, plan.estimand)
    found = combine(pair_means, seen, float(freedom), launch, kept_variance=kept)
    lower = found.log_lower + _sampling(rng, plan)
    log_gain = np.log1p(threshold) - np.quantile(lower, 1 - POWER)
    return PlannedPower(
        threshold=threshold,
        minimum_promotable_gain=float(np.expm1(log_gain)),
        standard_error=float(np.sqrt(np.mean(found.standard_error**2))),
        num_launches=4 * plan.num_pairs,
        num_servings=4 * plan.num_pairs * plan.num_requests,
        reasons=(bound.reason, rule_reason, request_reason),
    )


def _request_variance(plan: Plan, noise: NoiseProfile) -> tuple[float, str]:
    if plan.estimand != "population":
        return 0.0, f"{plan.estimand}: these very requests, which add no variance of their own"
    if noise.request_sd is None:
        return noise.rms**2 / plan.num_pairs, "request noise unknown: bounded by that of the pair means"
    variance = (plan.heterogeneity**2 + noise.request_sd**2 / plan.num_pairs) / plan.num_requests
    return variance, f"request noise {100 * noise.request_sd:.3g} % from the profile"


def _sampling(rng: np.random.Generator, plan: Plan) -> FloatArray:
    spread = plan.heterogeneity if plan.estimand == "population" else 0.0
    return rng.normal(0.0, spread / np.sqrt(plan.num_requests), NUM_DRAWS)
