"""Paired cluster bootstrap-t for the difference of two ratios.

Statistic: sum x_c / sum n_c - sum x_s / sum n_s over clusters, c the candidate and s stock; works for counts and for
real-valued sums. Clusters are redrawn whole, both arms together. The studentised form is second-order accurate for
skewed sums, which the percentile form is not. Source: Efron and Tibshirani 1993, chapter 12.5; the standard error is
the linearised one of a ratio estimator, Cochran 1977, chapter 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import FloatArray
from lossguard.checks.clusters import PairedSums

_COMPARISONS_PER_CHUNK = 32
_ZERO_VARIANCE = 1e-9  # of the original variance: a resample under it has no spread to studentise with


def cluster_weights(num_clusters: int, num_resamples: int, seed: int) -> FloatArray:
    """[B, K] how often each cluster is drawn in each resample. Comparisons may share one."""
    generator = np.random.default_rng(seed)
    # drawn cluster by cluster: the same multinomial as numpy's, which takes ten times as long
    drawn = generator.integers(0, num_clusters, size=(num_resamples, num_clusters))
    cell = drawn + num_clusters * np.arange(num_resamples)[:, None]
    counted = np.bincount(cell.reshape(-1), minlength=num_resamples * num_clusters)
    return counted.reshape(num_resamples, num_clusters).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Estimate [M] and cluster-robust standard error [M] of the difference of ratios."""

    estimate: FloatArray
    standard_error: FloatArray


def difference_of_ratios(sums: PairedSums) -> Difference:
    """Estimate and linearised standard error with the factor K / (K - 1); NaN where an arm has no tokens."""
    many = sums.as_many()
    num_clusters = many.num_clusters
    total_c = _total(many.candidate_tokens)
    total_s = _total(many.stock_tokens)
    share_c, share_s = many.candidate.sum(axis=1) / total_c, many.stock.sum(axis=1) / total_s
    residual_c = (many.candidate - share_c[:, None] * many.candidate_tokens) / total_c[:, None]
    residual_s = (many.stock - share_s[:, None] * many.stock_tokens) / total_s[:, None]
    variance = np.square(residual_c - residual_s).sum(axis=1) * num_clusters / max(num_clusters - 1, 1)
    return Difference(estimate=share_c - share_s, standard_error=np.sqrt(variance))


def _total(tokens: FloatArray) -> FloatArray:
    total = tokens.sum(axis=1)
    return np.where(total > 0, total, np.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapT:
    """Bounds of M differences at any level, from one set of resamples."""

    difference: Difference
    studentised: FloatArray  # [B, M] sorted along B; +-inf where a resample had no spread

    def upper(self, alpha: float) -> FloatArray:
        """[M] one-sided upper bounds at level 1 - alpha; inf where the resamples cannot tell."""
        return self._bound(math.floor(alpha * len(self.studentised)) - 1)

    def lower(self, alpha: float) -> FloatArray:
        """[M] one-sided lower bounds at level 1 - alpha; -inf where the resamples cannot tell."""
        return self._bound(math.ceil((1 - alpha) * len(self.studentised)))

    def _bound(self, rank: int) -> FloatArray:
        # the order statistic on the outer side of the quantile, so that a finite B never narrows a bound
        quantile = self.studentised[min(max(rank, 0), len(self.studentised) - 1)]
        error = self.difference.standard_error
        step = np.where(error > 0, quantile * np.where(error > 0, error, 1.0), 0.0)
        return np.asarray(self.difference.estimate - step)


def bootstrap_t(sums: PairedSums, weights: FloatArray) -> BootstrapT:
    """Studentised resamples of every comparison; ``sums`` is [K] or [M, K], ``weights`` [B, K]."""
    many = sums.as_many()
    difference = difference_of_ratios(many)
    studentised = np.empty((len(weights), len(many.candidate)))
    for start in range(0, len(many.candidate), _COMPARISONS_PER_CHUNK):
        chunk = slice(start, start + _COMPARISONS_PER_CHUNK)
        part = PairedSums(
            candidate=many.candidate[chunk],
            candidate_tokens=many.candidate_tokens[chunk],
            stock=many.stock[chunk],
            stock_tokens=many.stock_tokens[chunk],
        )
        studentised[:, chunk] = _studentise(part, weights, difference.standard_error[chunk])
    studentised.sort(axis=0)
    return BootstrapT(difference=difference, studentised=studentised)


def _studentise(sums: PairedSums, weights: FloatArray, error: FloatArray) -> FloatArray:
    """[B, M] (d* - d) / se*, from 4 first and 10 second moments per cluster and one matrix product.

    With residuals r = x - p n at the original shares, d* - d = R_c / N_c - R_s / N_s needs no subtraction of nearly
    equal numbers, and sum w D*^2 is a quadratic form in the resampled second moments.
    """
    n_c, n_s = sums.candidate_tokens, sums.stock_tokens
    with np.errstate(invalid="ignore", divide="ignore"):
        r_c = sums.candidate - (sums.candidate.sum(axis=1) / n_c.sum(axis=1))[:, None] * n_c
        r_s = sums.stock - (sums.stock.sum(axis=1) / n_s.sum(axis=1))[:, None] * n_s
    first = (r_c, n_c, r_s, n_s)
    second = (
        r_c * r_c,
        r_c * n_c,
        n_c * n_c,
        r_s * r_s,
        r_s * n_s,
        n_s * n_s,
        r_c * r_s,
        r_c * n_s,
        n_c * r_s,
        n_c * n_s,
    )
    moments = weights @ np.concatenate(first + second).T  # [B, 14 M]
    total = np.split(moments, 14, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        shift_c, shift_s = total[0] / total[1], total[2] / total[3]
        variance = (total[4] - 2 * shift_c * total[5] + shift_c**2 * total[6]) / total[1] ** 2
        variance += (total[7] - 2 * shift_s * total[8] + shift_s**2 * total[9]) / total[3] ** 2
        cross = total[10] - shift_s * total[11] - shift_c * total[12] + shift_c * shift_s * total[13]
        variance -= 2 * cross / (total[1] * total[3])
        num_clusters = sums.num_clusters
        variance *= num_clusters / max(num_clusters - 1, 1)
        shift = shift_c - shift_s
        flat = ~(variance > _ZERO_VARIANCE * error**2)
        studentised = shift / np.sqrt(np.where(flat, np.nan, variance))
    studentised = np.where(flat, np.where(shift == 0, 0.0, np.copysign(np.inf, shift)), studentised)
    studentised = np.where(np.isnan(shift), np.nan, studentised)
    # a resample without tokens of one arm says nothing: it may not narrow either bound
    return _widen_unknown(studentised)


def _widen_unknown(studentised: FloatArray) -> FloatArray:
    unknown = np.isnan(studentised)
    if unknown.any():
        signs = np.where(np.arange(len(studentised)) % 2 == 0, np.inf, -np.inf)
        studentised = np.where(unknown, signs[:, None], studentised)
    return studentised
