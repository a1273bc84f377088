"""The ``faster`` and ``not_slower`` verdicts of a batch of campaigns on the population estimand, from log ratios.

The same functions as ``rules.judge``, over leading axes: what is proved of a batch by simulation holds for a campaign.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossguard.timing.base import BoolArray, FloatArray
from lossguard.timing.estimator import EstimateArrays, estimate_arrays
from lossguard.timing.guards import stratum_guard, tail_guard
from lossguard.timing.launch_variance import MINIMUM_PAIRS, choose_launch_rule
from lossguard.timing.noise import root_mean_square, threshold_factor
from lossguard.timing.rules import Claim, decide, guard_limits, promotion_threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchVerdicts:
    """Verdicts and their parts; arrays have the batch's shape."""

    estimate: EstimateArrays
    threshold: FloatArray  # gain
    passes: BoolArray
    fails: BoolArray  # neither: INCONCLUSIVE
    mean_passes: BoolArray  # before the guards
    stratum_breached: BoolArray
    tail_within: BoolArray


def judge_batch(differences: FloatArray, profile: FloatArray, membership: FloatArray, claim: Claim) -> BatchVerdicts:
    """Verdicts from log ratios [..., M, N], A/A pair means [..., M0] and strata [..., N, K] of 0 and 1."""
    rule, _ = choose_launch_rule(differences.shape[-2])
    estimate = estimate_arrays(differences, profile, launch_rule=rule)
    threshold = thresholds(profile, claim)
    mean_passes, mean_fails = decide(estimate.log_lower, estimate.log_upper, threshold)
    limits = guard_limits(claim)
    strata = stratum_guard(differences, membership, profile, launch_rule=rule, limit=limits.stratum)
    breached = np.asarray(strata.breached.any(axis=-1))
    tails = tail_guard(differences, limit=limits.tail)
    enough = differences.shape[-2] >= MINIMUM_PAIRS
    return BatchVerdicts(
        estimate=estimate,
        threshold=threshold,
        passes=mean_passes & ~breached & tails.within & enough,
        fails=(mean_fails | breached | tails.breached) & enough,
        mean_passes=mean_passes,
        stratum_breached=breached,
        tail_within=tails.within,
    )


def thresholds(profile: FloatArray, claim: Claim) -> FloatArray:
    """[...] the gain that each campaign's lower bound must exceed, from its own A/A profile [..., M0]."""
    if claim.rule == "not-slower":
        return np.full(profile.shape[:-1], -claim.amount)
    factor, _ = threshold_factor(profile.shape[-1])
    noise = root_mean_square(profile) * factor
    return promotion_threshold(noise, asked=claim.amount, outputs_diverge=bool(claim.outputs_diverge))
