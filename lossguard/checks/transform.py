"""Probability integral transforms of both arms compared: the largest difference of their distribution functions.

Resampling is by cluster and turns the signs of whole clusters' residuals (Rademacher multipliers), so that correlation
inside a reply, and between the arms of one prompt, changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import FloatArray, IntArray
from lossguard.checks.clusters import request_sums, sum_by_cluster
from lossguard.checks.drawn_tokens import NUM_BINS, DrawnTokens, share_below
from lossguard.checks.symmetry import sign_flips

NUM_FLIPS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformComparison:
    """Differences of the distribution functions at the 19 inner edges of 20 bins, candidate minus stock."""

    difference: FloatArray  # [19] of shares
    standard_error: FloatArray  # [19]
    largest_by_chance: FloatArray  # [F] of |difference| / standard error over the edges, in resamples, ascending

    @property
    def largest(self) -> float:
        """The largest |difference| of shares."""
        return float(np.abs(self.difference).max())

    @property
    def p_value(self) -> float:
        """Of 'both arms have one distribution'."""
        error = self.standard_error
        scaled = np.where(error > 0, np.abs(self.difference) / np.where(error > 0, error, 1.0), 0.0)
        beyond = int((self.largest_by_chance >= scaled.max() * (1 - 1e-9)).sum())
        return (1 + beyond) / (1 + len(self.largest_by_chance))

    def upper(self, alpha: float) -> float:
        """Upper bound at level 1 - alpha of the largest |difference|, all edges at once."""
        rank = min(int(np.ceil((1 - alpha) * len(self.largest_by_chance))), len(self.largest_by_chance) - 1)
        return float((np.abs(self.difference) + self.largest_by_chance[rank] * self.standard_error).max())


def compare_transforms(cluster: IntArray, candidate: DrawnTokens, stock: DrawnTokens, seed: int) -> TransformComparison:
    """``cluster`` [R] is that of each request; both arms have drawn tokens."""
    columns = [_residuals(cluster, candidate, stock, edge / NUM_BINS) for edge in range(1, NUM_BINS)]
    residual = np.stack([column for _, column in columns], axis=1)  # [K, 19]
    num_clusters = len(residual)
    factor = num_clusters / max(num_clusters - 1, 1)
    error = np.sqrt(np.square(residual).sum(axis=0) * factor)
    sums = np.abs(sign_flips(num_clusters, seed, NUM_FLIPS) @ residual)
    scaled = np.where(error > 0, sums / np.where(error > 0, error, 1.0), 0.0)
    return TransformComparison(
        difference=np.array([difference for difference, _ in columns]),
        standard_error=error,
        largest_by_chance=np.sort(scaled.max(axis=1)),
    )


def largest_spread(tokens: DrawnTokens) -> float:
    """Standard deviation of a token's share under an edge, at the edge where it is largest."""
    columns = (share_below(tokens, edge / NUM_BINS)[tokens.is_drawn] for edge in range(1, NUM_BINS))
    return float(max(column.std() for column in columns))


def _residuals(cluster: IntArray, candidate: DrawnTokens, stock: DrawnTokens, level: float) -> tuple[float, FloatArray]:
    """The difference of shares under ``level``, and each cluster's part in it [K] (linearised ratio, Cochran 1977)."""
    shares: list[float] = []
    parts: list[FloatArray] = []
    for arm in (candidate, stock):
        below = sum_by_cluster(request_sums(share_below(arm, level), arm.scores), cluster)
        drawn = sum_by_cluster(request_sums(arm.is_drawn, arm.scores), cluster)
        share = float(below.sum() / drawn.sum())
        shares.append(share)
        parts.append((below - share * drawn) / drawn.sum())
    return shares[0] - shares[1], parts[0] - parts[1]
