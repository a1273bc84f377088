"""Variance of one swap pair's mean that comes from launching: profile against what this campaign shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from lossguard.timing.base import BoolArray, FloatArray, LaunchRule

MINIMUM_PAIRS = 4  # to promote
F_TEST_LEVEL = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchVariance:
    """Variance of one pair mean, over any batch axes."""

    variance: FloatArray  # nats squared
    degrees_of_freedom: FloatArray
    candidate_is_noisier: BoolArray  # the observed scatter replaced the profile's


def choose_launch_rule(num_pairs: int) -> tuple[LaunchRule, str]:
    """The rule for a number of pairs, with its reason (loop_timing 3.2)."""
    if num_pairs >= MINIMUM_PAIRS:
        return "largest", f"{num_pairs} pairs: the larger of the A/A profile's variance and the observed one"
    if num_pairs > 1:
        return "pooled", f"{num_pairs} pairs, screening only: A/A and observed variance pooled unless an F test objects"
    return "profile", "1 pair, screening only: its scatter is unknown, the A/A profile stands for it"


def launch_variance(pair_means: FloatArray, profile: FloatArray, rule: LaunchRule) -> LaunchVariance:
    """Variance of a pair mean from pair means [..., M] and the A/A profile [..., M0].

    The profile is centred on 0, the true mean of stock against stock, so it has M0 degrees of freedom; the observed
    scatter has M - 1. ``largest`` survives a candidate whose launches are noisier than stock's (its quantile is that of
    the part that won); ``pooled`` is narrower for 2 or 3 pairs.
    """
    size, num_profile = pair_means.shape[-1], profile.shape[-1]
    known = np.mean(np.square(profile), axis=-1)
    if rule == "profile" or size < 2:
        known = np.broadcast_to(known, pair_means.shape[:-1])
        return _result(known, np.full(known.shape, float(num_profile)), np.zeros(known.shape, np.bool_))
    observed = np.var(pair_means, axis=-1, ddof=1)
    known = np.broadcast_to(known, observed.shape)
    if rule == "largest":
        noisier = observed > known
        freedom = np.where(noisier, size - 1.0, float(num_profile))
        return _result(np.maximum(observed, known), freedom, noisier)
    noisier = observed > known * special.fdtri(size - 1, num_profile, 1 - F_TEST_LEVEL)
    total = num_profile + size - 1.0
    pooled = (num_profile * known + (size - 1) * observed) / total
    return _result(np.where(noisier, observed, pooled), np.where(noisier, size - 1.0, total), noisier)


def _result(variance: FloatArray, freedom: FloatArray, noisier: BoolArray) -> LaunchVariance:
    return LaunchVariance(
        variance=np.asarray(variance), degrees_of_freedom=np.asarray(freedom), candidate_is_noisier=np.asarray(noisier)
    )
