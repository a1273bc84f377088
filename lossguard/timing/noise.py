"""How noisy stock against stock is, and which bound of that noise enters where.

- Launch part of a bound: the rms itself, since its t quantile has the profile's degrees of freedom.
- Promotion threshold 1 % + 2 x noise: the 95 % upper bound under 20 A/A pairs (an rms of 8 may be far too small by
  chance), then the rms.
- Sequential boundary: always the 75 % upper bound. Its quantiles take the deviation for known, and with the rms of 8
  pairs its 5 % become 8 % (loop_timing, table 12).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from lossguard.timing.base import STOCK, Estimand, FloatArray, NoiseProfile, PairTimes
from lossguard.timing.crossover import judged_seconds, log_ratios, log_throughputs
from lossguard.timing.estimator import profile_values

MINIMUM_PROFILE_PAIRS = 8
SETTLED_PROFILE_PAIRS = 20  # from here the rms itself sets the threshold
THRESHOLD_CONFIDENCE = 0.95
SEQUENTIAL_CONFIDENCE = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseBound:
    """One figure for the noise of a swap pair (nats; 0.01 is about 1 %), and why that one."""

    value: float
    rms: float
    factor: float  # value / rms
    reason: str


def root_mean_square(profile: FloatArray) -> FloatArray:
    """[..., M0] -> [...]: the noise of one swap pair about 0, the mean of stock against stock by symmetry."""
    return np.asarray(np.sqrt(np.mean(np.square(profile), axis=-1)))


def upper_factor(num_pairs: int, confidence: float) -> float:
    """sqrt(M0 / chi-square quantile): what turns the rms of M0 pairs into an upper bound (1.71 for 8 at 95 %)."""
    return float(np.sqrt(num_pairs / special.chdtri(num_pairs, confidence)))


def threshold_factor(num_pairs: int) -> tuple[float, str]:
    """By what the rms is multiplied in the promotion threshold, and why."""
    if num_pairs >= SETTLED_PROFILE_PAIRS:
        return 1.0, f"rms of {num_pairs} A/A pairs"
    return (
        upper_factor(num_pairs, THRESHOLD_CONFIDENCE),
        f"95 % chi-square upper bound, as the profile has only {num_pairs} A/A pairs (under {SETTLED_PROFILE_PAIRS})",
    )


def threshold_noise(noise: NoiseProfile, estimand: Estimand = "population") -> NoiseBound:
    """The noise of the promotion threshold 1 % + 2 x noise."""
    factor, reason = threshold_factor(noise.num_pairs)
    return _bound(noise, estimand, factor, reason)


def sequential_noise(noise: NoiseProfile, estimand: Estimand = "population") -> NoiseBound:
    """The noise that the group-sequential boundary and the confidence sequence take for the standard deviation."""
    reason = f"75 % chi-square upper bound of {noise.num_pairs} A/A pairs: the boundary takes the deviation for known"
    return _bound(noise, estimand, upper_factor(noise.num_pairs, SEQUENTIAL_CONFIDENCE), reason)


def _bound(noise: NoiseProfile, estimand: Estimand, factor: float, reason: str) -> NoiseBound:
    rms = float(root_mean_square(profile_values(noise, estimand)))
    return NoiseBound(value=rms * factor, rms=rms, factor=factor, reason=reason)


def noise_profile(times: PairTimes, *, per_token: bool = False) -> NoiseProfile:
    """The profile of an A/A campaign: stock in both arms.

    Raises
    ------
    UsageError
        LG1050, LG1051.
    """
    seconds = judged_seconds(times, per_token=per_token)
    ratios = log_ratios(seconds)
    spread = ratios - ratios.mean(axis=1, keepdims=True)
    deviation = None
    if times.num_requests > 1:
        deviation = float(np.sqrt((spread**2).sum() / (times.num_pairs * (times.num_requests - 1))))
    return NoiseProfile(
        pair_means=tuple(ratios.mean(axis=1).tolist()),
        pair_throughputs=tuple(log_throughputs(seconds).tolist()),
        request_sd=deviation,
        stock_levels=tuple(stock_levels(seconds).tolist()),
    )


def stock_levels(seconds: FloatArray) -> FloatArray:
    """[..., M, 2, 2, N] -> [..., M]: mean log seconds of the stock arm in each pair, over both devices."""
    return np.asarray(np.log(seconds[..., STOCK, :]).mean(axis=(-1, -2)))


def profile_problem(noise: NoiseProfile | None) -> str | None:
    """Why a profile cannot carry a verdict, or None."""
    if noise is None or noise.num_pairs == 0:
        return "no A/A noise profile: record stock against stock first"
    if noise.num_pairs < MINIMUM_PROFILE_PAIRS:
        return f"the A/A profile has {noise.num_pairs} swap pairs; it takes {MINIMUM_PROFILE_PAIRS}"
    if not np.isfinite(noise.pair_means).all():
        return "the A/A profile holds values that are no numbers"
    if noise.rms == 0:
        return "the A/A profile shows no noise at all, which no clock does: it was not measured"
    return None


def describe_noise(noise: NoiseProfile, estimand: Estimand = "population") -> Mapping[str, Any]:
    """Everything that a report says about a profile: rms, largest, both upper bounds and where each is used."""
    values = profile_values(noise, estimand)
    threshold, sequential = threshold_noise(noise, estimand), sequential_noise(noise, estimand)
    rms = float(root_mean_square(values))
    return {
        "num_pairs": noise.num_pairs,
        "rms": rms,
        "largest": float(np.abs(values).max()),
        "mean": float(values.mean()),
        "upper_95": rms * upper_factor(noise.num_pairs, THRESHOLD_CONFIDENCE),
        "upper_75": rms * upper_factor(noise.num_pairs, SEQUENTIAL_CONFIDENCE),
        "threshold_noise": threshold.value,
        "threshold_reason": threshold.reason,
        "sequential_noise": sequential.value,
        "sequential_reason": sequential.reason,
        "request_sd": noise.request_sd,
    }
