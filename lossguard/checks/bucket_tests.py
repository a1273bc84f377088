"""One-sided p-values of a bucket: its mismatch rate by cluster, its requests with events exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import FloatArray
from lossguard.checks.bootstrap_t import difference_of_ratios
from lossguard.checks.bounds import effective_counts
from lossguard.checks.clusters import PairedSums
from lossguard.checks.proportions import conditional_test


def rate_p_values(sums: PairedSums) -> FloatArray:
    """[M] p for H0: the candidate's rate is not above stock's; the larger of two tests.

    Paired cluster t of the difference of ratios, and the exact conditional test on effective counts, which holds
    where few clusters carry a mismatch. 1 where an arm has no tokens.
    """
    from scipy.special import stdtr

    many = sums.as_many()
    known = (many.candidate_tokens.sum(axis=1) > 0) & (many.stock_tokens.sum(axis=1) > 0)
    difference = difference_of_ratios(many)
    error = np.where(known, difference.standard_error, np.nan)
    spread = error > 0
    statistic = np.where(spread, difference.estimate, 0.0) / np.where(spread, error, 1.0)
    by_cluster = np.where(spread, stdtr(max(many.num_clusters - 1, 1), -statistic), 1.0)
    effective = effective_counts(many)
    with np.errstate(invalid="ignore", divide="ignore"):
        exact = conditional_test(effective)
    return np.where(known, np.maximum(by_cluster, np.where(np.isnan(exact), 1.0, exact)), 1.0)


def rate_excess(sums: PairedSums) -> FloatArray:
    """[M] the candidate's rate minus stock's; 0 where an arm has no tokens."""
    estimate = difference_of_ratios(sums.as_many()).estimate
    return np.where(np.isfinite(estimate), estimate, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standardised:
    """A bucket of the candidate against all of stock's tokens, both by cluster and difficulty bin, [K, B].

    A bin is a range of the scorer's top-2 gap: without a fault, how often a token mismatches there does not depend
    on the path that served it.
    """

    mismatches: FloatArray  # of the candidate in the bucket
    tokens: FloatArray
    stock_mismatches: FloatArray
    stock_tokens: FloatArray


def standardised_excess(given: Standardised) -> float:
    """The bucket's mismatches over those expected from stock at equal difficulty, a fraction of its tokens."""
    total = given.stock_tokens.sum(axis=0)
    known = total > 0
    rate = np.where(known, given.stock_mismatches.sum(axis=0) / np.where(known, total, 1.0), 0.0)
    excess = ((given.mismatches - rate * given.tokens) * known).sum()
    return float(excess / max(float((given.tokens * known).sum()), 1.0))


def standardised_p_value(given: Standardised) -> float:
    """p for H0: the bucket's mismatches are not above those expected from stock at equal difficulty.

    Direct standardisation with the linearised cluster variance of observed minus expected, stock's estimated bin
    rates included; the larger of its t tail and a Poisson tail. Candidate tokens in bins without stock are left out.
    """
    from scipy.special import gammainc, stdtr

    total = given.stock_tokens.sum(axis=0)
    known = total > 0
    rate = np.where(known, given.stock_mismatches.sum(axis=0) / np.where(known, total, 1.0), 0.0)
    weight = np.where(known, given.tokens.sum(axis=0) / np.where(known, total, 1.0), 0.0)
    excess = ((given.mismatches - rate * given.tokens) * known).sum(axis=1)
    influence = excess - (weight * (given.stock_mismatches - rate * given.stock_tokens)).sum(axis=1)
    num_clusters = len(influence)
    variance = np.square(influence - influence.mean()).sum() * num_clusters / max(num_clusters - 1, 1)
    observed, expected = float((given.mismatches * known).sum()), float((rate * given.tokens * known).sum())
    if not variance > 0 or observed <= 0:
        return 1.0
    by_cluster = float(stdtr(max(num_clusters - 1, 1), -(observed - expected) / np.sqrt(variance)))
    effect = max(float(variance) / max(expected, 1e-9), 1.0)
    # half a mismatch more than seen in stock: a bin where stock has none by chance may not decide alone
    poisson = float(gammainc(observed / effect, (expected + 0.5) / effect))
    return max(by_cluster, poisson)
