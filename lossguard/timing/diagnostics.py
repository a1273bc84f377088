"""Beside the gate, never the gate: medians and ranks pass a candidate that makes one request in ten far slower."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from lossguard.timing.base import Estimate, FloatArray, PairTimes
from lossguard.timing.crossover import judged_seconds, log_ratios
from lossguard.timing.estimator import t_quantile

NOTE = "diagnostics only: a median or a rank test calls a candidate faster that slows a tenth of the requests by 9 %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """Robust figures over the requests' mean log ratios. Not for a verdict."""

    median_log_gain: float
    hodges_lehmann_log_gain: float
    hodges_lehmann_lower: float  # one-sided 95 %
    wilcoxon_p: float  # one-sided: the candidate is faster
    share_faster: float  # of requests
    skewness: float  # of the requests' log ratios; a long lower tail is negative
    skew_corrected_log_lower: float  # what the gate's lower bound would be after Johnson's correction
    note: str = NOTE


def diagnostics(times: PairTimes, estimate: Estimate) -> Diagnostics:
    """Robust figures of a campaign beside its estimate.

    Raises
    ------
    UsageError
        LG1050, LG1051.
    """
    gains = log_ratios(judged_seconds(times, per_token=estimate.per_token)).mean(axis=0)
    point, lower = hodges_lehmann(gains)
    skewness = _skewness(gains)
    return Diagnostics(
        median_log_gain=float(np.median(gains)),
        hodges_lehmann_log_gain=point,
        hodges_lehmann_lower=lower,
        wilcoxon_p=_wilcoxon(gains),
        share_faster=float((gains > 0).mean()),
        skewness=skewness,
        skew_corrected_log_lower=skew_corrected_lower(estimate, skewness),
    )


def hodges_lehmann(gains: FloatArray) -> tuple[float, float]:
    """Median of the Walsh averages with the one-sided 95 % bound of the signed-rank test (Hodges and Lehmann 1963)."""
    size = gains.size
    first, second = np.triu_indices(size)
    averages = np.sort((gains[first] + gains[second]) / 2)
    rank = size * (size + 1) / 4 + stats.norm.ppf(0.05) * np.sqrt(size * (size + 1) * (2 * size + 1) / 24)
    if rank < 1:
        return float(np.median(averages)), -np.inf
    return float(np.median(averages)), float(averages[int(rank) - 1])


def skew_corrected_lower(estimate: Estimate, skewness: float) -> float:
    """The lower bound lowered by Johnson's (1978) correction of t for a skewed mean; never raised.

    The correction belongs to the request part: skewness x its error x (1 + 2 t^2) / (6 sqrt(n)).
    """
    quantile = float(t_quantile(np.asarray(estimate.degrees_of_freedom), estimate.confidence))
    error = np.sqrt(estimate.variance_parts.get("request", 0.0))
    shift = skewness * error * (1 + 2 * quantile**2) / (6 * np.sqrt(estimate.num_requests))
    return float(estimate.log_lower + min(shift, 0.0))


def _skewness(gains: FloatArray) -> float:
    spread = float(gains.std())
    return float(((gains - gains.mean()) ** 3).mean() / spread**3) if spread > 0 else 0.0


def _wilcoxon(gains: FloatArray) -> float:
    if not np.any(gains):
        return 1.0
    return float(stats.wilcoxon(gains, alternative="greater").pvalue)
