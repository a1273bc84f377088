"""A bound that holds at every number of pairs at once: Robbins' normal mixture, one-sided."""

from __future__ import annotations

import numpy as np

from lossguard.timing.base import FloatArray, IntArray

MIXTURE_VARIANCE = 0.25  # tightest near 4 pairs


def mixture_radius(num_pairs: IntArray, deviation: FloatArray | float, alpha: float) -> FloatArray:
    """Distance from the mean of m pairs to its one-sided bound, valid at all m together.

    deviation x sqrt(2 (m r + 1) / (m^2 r) log(sqrt(m r + 1) / (2 alpha) + 1)) with r the mixture's variance (Robbins
    1970; Waudby-Smith et al., arXiv 2103.06476).
    """
    scaled = num_pairs * MIXTURE_VARIANCE
    inner = np.log(np.sqrt(scaled + 1) / (2 * alpha) + 1)
    return np.asarray(deviation * np.sqrt(2 * (scaled + 1) / (num_pairs * scaled) * inner))


def running_lower(pair_means: FloatArray, deviation: FloatArray, alpha: float = 0.05) -> FloatArray:
    """Lower bounds of the mean after each pair, [..., M] -> [..., M]; their maximum so far is a bound too."""
    counts = np.arange(1, pair_means.shape[-1] + 1)
    return np.asarray(pair_means.cumsum(axis=-1) / counts - mixture_radius(counts, deviation[..., None], alpha))
