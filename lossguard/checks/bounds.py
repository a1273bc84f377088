"""Bounds of candidate minus stock: bootstrap-t, or bounds from effective counts where resampling cannot be trusted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import BoolArray, FloatArray
from lossguard.checks.bootstrap_t import BootstrapT, bootstrap_t, cluster_weights
from lossguard.checks.clusters import PairedSums
from lossguard.checks.proportions import (
    Counts,
    binomial_upper,
    counts,
    design_effect,
    exact_upper,
    score_upper,
)

NUM_RESAMPLES = 4000
MINIMUM_SPREAD_CLUSTERS = 10
"""Under this many clusters their spread is unknown: each then counts as one observation."""
MINIMUM_HIT_CLUSTERS = 5
"""Under this many clusters with a hit in an arm, resampling sees too few values of that arm to give its tail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Sums of both arms: counts of hits, or sums of values in [0, ``largest_value``] of which ``hits`` are not 0."""

    sums: PairedSums
    hits: PairedSums
    largest_value: float | None = None  # None: the sums are the hits


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One direction: an upper bound of first minus second. The lower bound is that of the arms exchanged, negated."""

    estimate: FloatArray
    resampled: FloatArray  # [M] the bootstrap's upper bound
    effective: Counts
    first_mean: FloatArray
    second_mean: FloatArray
    first_is_few: BoolArray
    second_is_few: BoolArray

    def of_counts(self, alpha: float) -> FloatArray:
        """Score bound where an arm has few hits, and never inside the exact bound where an arm has none.

        By enumeration over Poisson counts from 0 to 60 the error of this pair is at most 5.9 % where 5 % is nominal
        and 1.3 % where 1 % is; the exact bound alone is valid, but too wide to pass stock against itself at low rates.
        """
        has_zero = (self.effective.first <= 0) | (self.effective.second <= 0)
        score, exact = score_upper(self.effective, alpha), exact_upper(self.effective, alpha)
        counted = np.where(has_zero, np.maximum(score, exact), score)
        unusable = self.first_is_few | self.second_is_few | ~np.isfinite(self.resampled)
        return np.where(unusable, np.maximum(counted, self.estimate), self.resampled)

    def of_values(self, alpha: float, largest_value: float) -> FloatArray:
        """The bootstrap's bound, widened by all that an arm with few hits may hide.

        Such an arm's mean lies between 0 and ``largest_value`` times the exact bound of its share of hits.
        """
        broken = ~np.isfinite(self.resampled)
        both = (self.first_is_few & self.second_is_few) | broken
        highest = largest_value * binomial_upper(self.effective.first, self.effective.first_trials, alpha)
        hidden = np.where(self.first_is_few | broken, np.maximum(highest - self.first_mean, 0.0), 0.0)
        hidden = hidden + np.where(self.second_is_few | broken, self.second_mean, 0.0)
        return np.where(both, self.estimate, self.resampled) + hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds at any level for M comparisons, by the bootstrap unless an arm has too few clusters with a hit."""

    bootstrap: BootstrapT
    effective: Counts  # [M] hits and tokens over the design effect
    means: tuple[FloatArray, FloatArray]  # [M] of the candidate and of stock
    is_few: tuple[BoolArray, BoolArray]  # [M] likewise
    largest_value: float | None

    @property
    def estimate(self) -> FloatArray:
        """[M] candidate minus stock."""
        return self.bootstrap.difference.estimate

    @property
    def standard_error(self) -> FloatArray:
        """[M] by cluster."""
        return self.bootstrap.difference.standard_error

    def upper(self, alpha: float) -> FloatArray:
        """[M] one-sided upper bounds at level 1 - alpha; never NaN (inf without tokens)."""
        side = _Side(
            estimate=self.estimate,
            resampled=self.bootstrap.upper(alpha),
            effective=self.effective,
            first_mean=self.means[0],
            second_mean=self.means[1],
            first_is_few=self.is_few[0],
            second_is_few=self.is_few[1],
        )
        return self._bound(side, alpha)

    def lower(self, alpha: float) -> FloatArray:
        """[M] one-sided lower bounds at level 1 - alpha; never NaN (-inf without tokens)."""
        side = _Side(
            estimate=-self.estimate,
            resampled=-self.bootstrap.lower(alpha),
            effective=self.effective.swapped(),
            first_mean=self.means[1],
            second_mean=self.means[0],
            first_is_few=self.is_few[1],
            second_is_few=self.is_few[0],
        )
        return -self._bound(side, alpha)

    def _bound(self, side: _Side, alpha: float) -> FloatArray:
        value = side.of_counts(alpha) if self.largest_value is None else side.of_values(alpha, self.largest_value)
        return np.where(np.isfinite(value), value, np.inf)


def paired_bounds(comparison: Comparison, weights: FloatArray) -> Bounds:
    """Bounds of one comparison ([K] arrays) or many ([M, K]); all of them share ``weights`` [B, K]."""
    sums, hits = comparison.sums.as_many(), comparison.hits.as_many()
    arms = ((sums.candidate, sums.candidate_tokens), (sums.stock, sums.stock_tokens))
    with np.errstate(invalid="ignore", divide="ignore"):
        means = [values.sum(axis=1) / tokens.sum(axis=1) for values, tokens in arms]
    too_few = sums.num_clusters < MINIMUM_SPREAD_CLUSTERS
    is_few = [too_few | ((arm > 0).sum(axis=1) < MINIMUM_HIT_CLUSTERS) for arm in (hits.candidate, hits.stock)]
    return Bounds(
        bootstrap=bootstrap_t(sums, weights),
        effective=effective_counts(hits),
        means=(means[0], means[1]),
        is_few=(is_few[0], is_few[1]),
        largest_value=comparison.largest_value,
    )


def bounds_of(comparison: Comparison, seed: int) -> Bounds:
    """Bounds of one comparison with its own resamples."""
    return paired_bounds(comparison, cluster_weights(comparison.sums.num_clusters, NUM_RESAMPLES, seed))


def effective_counts(hits: PairedSums) -> Counts:
    """Hits and tokens of each arm over its design effect (Rao and Scott 1992); [M] from [M, K].

    An arm with few hits cannot show its own clustering, so that each arm takes the larger design effect of the two.
    """
    if hits.num_clusters < MINIMUM_SPREAD_CLUSTERS:
        largest = np.maximum(hits.candidate_tokens.sum(axis=-1), hits.stock_tokens.sum(axis=-1))
        effect = np.maximum(largest / hits.num_clusters, 1.0)
    else:
        effect = np.maximum(
            design_effect(hits.candidate, hits.candidate_tokens), design_effect(hits.stock, hits.stock_tokens)
        )
    return counts(
        hits.candidate.sum(axis=-1) / effect,
        hits.candidate_tokens.sum(axis=-1) / effect,
        hits.stock.sum(axis=-1) / effect,
        hits.stock_tokens.sum(axis=-1) / effect,
    )
