"""Two proportions: Miettinen-Nurminen score bounds, Rao-Scott effective counts, exact bounds and tests.

Counts may be fractional (effective counts) and may be arrays; all functions work element by element.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lossguard.checks.base import FloatArray

_BISECTIONS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Successes and trials of the first and the second arm, scalars or arrays of one shape."""

    first: FloatArray
    first_trials: FloatArray
    second: FloatArray
    second_trials: FloatArray

    def swapped(self) -> Counts:
        """The arms exchanged."""
        return Counts(
            first=self.second, first_trials=self.second_trials, second=self.first, second_trials=self.first_trials
        )


def counts(first: ArrayLike, first_trials: ArrayLike, second: ArrayLike, second_trials: ArrayLike) -> Counts:
    """Counts from anything array-like."""
    arrays = [np.asarray(value, dtype=np.float64) for value in (first, first_trials, second, second_trials)]
    return Counts(first=arrays[0], first_trials=arrays[1], second=arrays[2], second_trials=arrays[3])


def score_statistic(given: Counts, difference: ArrayLike) -> FloatArray:
    """Miettinen-Nurminen z for H0: p1 - p2 = difference (with their factor N / (N - 1)).

    The variance is taken at the maximum-likelihood estimate under H0, the root of a cubic in closed form.
    Source: Miettinen and Nurminen 1985, Statistics in Medicine 4, 213-226, appendix I.
    """
    delta = np.asarray(difference, dtype=np.float64)
    total = given.first_trials + given.second_trials
    with np.errstate(divide="ignore", invalid="ignore"):
        null1, null2 = _null_shares(given, delta)
        variance = null1 * (1 - null1) / given.first_trials + null2 * (1 - null2) / given.second_trials
    variance = np.maximum(variance * total / np.maximum(total - 1, 1e-9), 0.0)
    distance = _difference(given) - delta
    flat = variance <= 0
    statistic = distance / np.sqrt(np.where(flat, 1.0, variance))
    return np.where(flat, np.where(distance == 0, 0.0, np.copysign(np.inf, distance)), statistic)


def _difference(given: Counts) -> FloatArray:
    """p1 - p2; NaN where an arm has no trials."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(given.first / given.first_trials - given.second / given.second_trials)


def _null_shares(given: Counts, delta: FloatArray) -> tuple[FloatArray, FloatArray]:
    n1, n2, x1, x2 = given.first_trials, given.second_trials, given.first, given.second
    total = n1 + n2
    # L3 p^3 + L2 p^2 + L1 p + L0 = 0 for the second arm's share p, in the paper's notation
    l2 = (n1 + 2 * n2) * delta - total - (x1 + x2)
    l1 = (n2 * delta - total - 2 * x2) * delta + x1 + x2
    l0 = x2 * delta * (1 - delta)
    q = l2**3 / (3 * total) ** 3 - l1 * l2 / (6 * total**2) + l0 / (2 * total)
    radius = np.sqrt(np.maximum(l2**2 / (3 * total) ** 2 - l1 / (3 * total), 0.0))
    p = np.where(q >= 0, radius, -radius)
    cube = np.where(p == 0, 1.0, p**3)
    angle = (np.pi + np.arccos(np.clip(q / cube, -1.0, 1.0))) / 3
    share2 = np.clip(2 * p * np.cos(angle) - l2 / (3 * total), np.maximum(0.0, -delta), np.minimum(1.0, 1.0 - delta))
    return np.clip(share2 + delta, 0.0, 1.0), share2


def score_upper(given: Counts, alpha: float) -> FloatArray:
    """One-sided upper bound of p1 - p2 at level 1 - alpha by inverting the score test."""
    from scipy.special import ndtri

    limit = float(ndtri(alpha))
    low = np.atleast_1d(_difference(given))
    high = np.ones_like(low)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        inside = score_statistic(given, middle) > limit
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return high.reshape(np.shape(given.first))


def score_lower(given: Counts, alpha: float) -> FloatArray:
    """One-sided lower bound of p1 - p2 at level 1 - alpha."""
    return -score_upper(given.swapped(), alpha)


def binomial_upper(successes: ArrayLike, trials: ArrayLike, alpha: float) -> FloatArray:
    """Clopper-Pearson one-sided upper bound; 1 where there are no trials."""
    from scipy.special import betaincinv

    x, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    inside = (x < n) & (n > 0)
    bound = betaincinv(np.where(inside, x + 1, 1.0), np.where(inside, n - x, 1.0), 1 - alpha)
    return np.where(inside, bound, 1.0)


def binomial_lower(successes: ArrayLike, trials: ArrayLike, alpha: float) -> FloatArray:
    """Clopper-Pearson one-sided lower bound; 0 where there are no successes."""
    from scipy.special import betaincinv

    x, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    inside = (x > 0) & (n > 0)
    bound = betaincinv(np.where(inside, x, 1.0), np.where(inside, np.maximum(n - x, 0.0) + 1, 1.0), alpha)
    return np.where(inside, bound, 0.0)


def conditional_test(given: Counts) -> FloatArray:
    """Exact one-sided p for H0: the first arm's rate is not above the second's, given the total.

    The first count among both is binomial with share n1 / (n1 + n2); fractional counts use the incomplete beta
    function, which continues the binomial tail. Source: Przyborowski and Wilenski 1940, Biometrika 31, 313-323.
    """
    from scipy.special import betainc

    share = given.first_trials / (given.first_trials + given.second_trials)
    positive = given.first > 0
    return np.where(positive, betainc(np.where(positive, given.first, 1.0), given.second + 1, share), 1.0)


def exact_lower(given: Counts, alpha: float) -> FloatArray:
    """One-sided lower bound of p1 - p2 that holds for any counts, zero included.

    Where the conditional test shows p1 / p2 over some ratio r > 1 at alpha / 2, it is L1 (1 - 1 / r) with L1 the
    Clopper-Pearson bound at alpha / 2; elsewhere L1 - U2 at alpha / 2 each, or -U2 at alpha if the first count is
    zero (then L1 = 0 costs nothing). Bonferroni, hence conservative.
    """
    x1, n1, x2, n2 = given.first, given.first_trials, given.second, given.second_trials
    low1 = binomial_lower(x1, n1, alpha / 2)
    box = np.where(x1 > 0, low1 - binomial_upper(x2, n2, alpha / 2), -binomial_upper(x2, n2, alpha))
    share = np.minimum(binomial_lower(x1, x1 + x2, alpha / 2), 1 - 1e-12)
    ratio = share / (1 - share) * n2 / np.where(n1 > 0, n1, np.inf)
    return np.where(ratio > 1, np.maximum(low1 * (1 - 1 / np.maximum(ratio, 1e-300)), box), box)


def exact_upper(given: Counts, alpha: float) -> FloatArray:
    """One-sided upper bound of p1 - p2 that holds for any counts; see ``exact_lower``."""
    return -exact_lower(given.swapped(), alpha)


def design_effect(sums: FloatArray, tokens: FloatArray) -> FloatArray:
    """Cluster variance of a proportion over its binomial variance, floored at 1, along the last axis.

    1 where there is no success. Source: Rao and Scott 1992, Biometrics 48, 577-585.
    """
    num_clusters = sums.shape[-1]
    total = np.maximum(tokens.sum(axis=-1), 1e-300)
    share = sums.sum(axis=-1) / total
    residual = sums - share[..., None] * tokens
    cluster = num_clusters / max(num_clusters - 1, 1) * np.square(residual).sum(axis=-1)
    binomial = share * (1 - share) * total
    return np.where(binomial > 0, np.maximum(cluster / np.where(binomial > 0, binomial, 1.0), 1.0), 1.0)
