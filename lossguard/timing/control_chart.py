"""Is stock itself as it was when its noise was recorded? A two-sided CUSUM of its own times.

Covered: stock that became slower or faster as a whole, at once or by drift: a throttled host, a neighbour, a stock that
was slowed on purpose. Not covered: shifts under half a per cent, which cannot promote a gain of 1 %.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from lossguard.timing.base import FloatArray, NoiseProfile, PairTimes
from lossguard.timing.crossover import check_pairs
from lossguard.timing.noise import stock_levels

TOLERANCE = 0.005  # nats; half of the smallest gain that is ever promoted
ALLOWANCE = 0.5  # standard deviations that a level may lie off without adding to the sum
FALSE_ALARM = 0.01  # of a whole campaign of a stock that has not changed
MINIMUM_LEVELS = 8
_NUM_DRAWS = 20_000
_SEED = 2026_11_29


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlChart:
    """Stock's levels beside the profile's."""

    is_off: bool
    reason: str
    deviations: tuple[float, ...]  # [M] nats off the profile's mean level; positive: slower
    upper_sums: tuple[float, ...]  # [M] CUSUM of slowness, in standard deviations
    lower_sums: tuple[float, ...]  # [M] CUSUM of speed
    limit: float


def cusum(standardised: FloatArray) -> FloatArray:
    """Page's (1954) one-sided sums along the last axis: S_m = max(0, S_{m-1} + z_m - allowance)."""
    walk = np.cumsum(standardised - ALLOWANCE, axis=-1)
    lowest = np.minimum.accumulate(np.minimum(walk, 0.0), axis=-1)
    return np.asarray(walk - lowest)


@functools.lru_cache(maxsize=64)
def cusum_limit(num_profile: int, num_pairs: int, false_alarm: float = FALSE_ALARM) -> float:
    """What both sums may reach, when mean and spread are themselves estimated from a short profile.

    Drawn from normal levels with a fixed seed: textbook limits take mean and spread for known and alarm far too often
    after 8 levels.
    """
    rng = np.random.default_rng(_SEED)
    profile = rng.standard_normal((_NUM_DRAWS, num_profile))
    levels = rng.standard_normal((_NUM_DRAWS, num_pairs))
    scores = standardised_levels(levels, profile, tolerance=0.0)
    largest = np.maximum(cusum(scores).max(axis=-1), cusum(-scores).max(axis=-1))
    return float(np.quantile(largest, 1 - false_alarm))


def standardised_levels(levels: FloatArray, profile: FloatArray, *, tolerance: float = TOLERANCE) -> FloatArray:
    """Levels [..., M] in standard deviations off the profile's [..., M0] mean, less what is tolerated."""
    deviations = levels - profile.mean(axis=-1, keepdims=True)
    spread = profile.std(axis=-1, ddof=1, keepdims=True)
    beyond = np.sign(deviations) * np.maximum(np.abs(deviations) - tolerance, 0.0)
    return np.asarray(beyond / np.where(spread > 0, spread, tolerance if tolerance > 0 else 1.0))


def control_chart(times: PairTimes, noise: NoiseProfile) -> ControlChart:
    """Stock's own times of a campaign against its profile. Off means INCONCLUSIVE, whatever the gain says.

    Pairs are in the order in which they ran, with the same requests as the profile's.

    Raises
    ------
    UsageError
        LG1050, LG1051.
    """
    check_pairs(times)
    levels, profile = stock_levels(times.seconds), np.asarray(noise.stock_levels)
    if profile.size < MINIMUM_LEVELS:
        reason = f"the profile holds {profile.size} levels of stock; the chart takes {MINIMUM_LEVELS}"
        return ControlChart(is_off=True, reason=reason, deviations=(), upper_sums=(), lower_sums=(), limit=np.inf)
    scores = standardised_levels(levels, profile)
    slower, faster = cusum(scores), cusum(-scores)
    limit = cusum_limit(profile.size, levels.size)
    deviations = levels - profile.mean()
    return ControlChart(
        is_off=bool(max(slower.max(), faster.max()) > limit),
        reason=_reason(slower, faster, deviations, limit),
        deviations=tuple(deviations.tolist()),
        upper_sums=tuple(slower.tolist()),
        lower_sums=tuple(faster.tolist()),
        limit=limit,
    )


def _reason(slower: FloatArray, faster: FloatArray, deviations: FloatArray, limit: float) -> str:
    off = np.flatnonzero(np.maximum(slower, faster) > limit)
    mean = 100 * float(np.expm1(deviations.mean()))
    if off.size == 0:
        return f"stock is as in its profile ({mean:+.2f} %)"
    return f"stock's times left its profile at pair {off[0] + 1} of {deviations.size} ({mean:+.2f} % on average)"
