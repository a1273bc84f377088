"""Ratio of total times where the requests are a sample: Fieller's interval, widened by the launch noise."""

from __future__ import annotations

import numpy as np

from lossguard.timing.base import Estimate, FloatArray, NoiseProfile, PairTimes
from lossguard.timing.crossover import judged_seconds, log_throughputs
from lossguard.timing.estimator import (
    CONFIDENCE,
    EstimateArrays,
    Terms,
    check_sample,
    kept_launch_variance,
    kept_reach,
    profile_values,
    single,
    t_quantile,
)
from lossguard.timing.launch_variance import choose_launch_rule, launch_variance


def fieller_logs(
    stock: FloatArray, candidate: FloatArray, *, confidence: float = CONFIDENCE
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Log of the ratio of means of paired columns [..., N] with its one-sided bounds: (point, lower, upper).

    Fieller (1954), J. R. Stat. Soc. B 16. Bounds are infinite where the data do not bound the ratio.
    """
    size = stock.shape[-1]
    squared = t_quantile(np.asarray(size - 1.0), confidence) ** 2
    mean_stock, mean_candidate = stock.mean(axis=-1), candidate.mean(axis=-1)
    covariance = ((stock - mean_stock[..., None]) * (candidate - mean_candidate[..., None])).sum(axis=-1)
    covariance = covariance / (size - 1) / size
    first = mean_candidate**2 - squared * candidate.var(axis=-1, ddof=1) / size
    middle = mean_stock * mean_candidate - squared * covariance
    last = mean_stock**2 - squared * stock.var(axis=-1, ddof=1) / size
    root = np.sqrt(np.maximum(middle**2 - first * last, 0.0))
    bounded = (first > 0) & (middle > root)
    safe = np.where(bounded, first, 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        lower = np.where(bounded, np.log(np.where(bounded, middle - root, 1.0) / safe), -np.inf)
        upper = np.where(bounded, np.log(np.where(bounded, middle + root, 1.0) / safe), np.inf)
    return np.log(mean_stock / mean_candidate), lower, upper


def throughput_of_population(
    times: PairTimes, noise: NoiseProfile, *, per_token: bool = False, confidence: float = CONFIDENCE
) -> Estimate:
    """Ratio of total time over the population of the requests.

    Fieller's distances and the launch noise's are independent and are added in quadrature (method of variance
    estimates recovery, Zou and Donner 2008). About 20 % wider than the mean log ratio, since long requests dominate.

    Raises
    ------
    UsageError
        LG1050 to LG1053, as ``estimator.estimate``.
    """
    seconds = judged_seconds(times, per_token=per_token)
    check_sample(times)
    by_request = seconds.mean(axis=(0, 1))  # [2, N]
    point, low, high = fieller_logs(by_request[0], by_request[1], confidence=confidence)
    rule, reason = choose_launch_rule(times.num_pairs)
    pair_means = log_throughputs(seconds)
    launch = launch_variance(pair_means, profile_values(noise, "throughput"), rule)
    kept = kept_launch_variance(noise, "throughput")
    variance = launch.variance / times.num_pairs
    reach = np.hypot(
        t_quantile(launch.degrees_of_freedom, confidence) * np.sqrt(variance), kept_reach(kept, confidence)
    )
    below, above = np.hypot(point - low, reach), np.hypot(high - point, reach)
    quantile = t_quantile(np.asarray(times.num_requests - 1.0), confidence)
    request_variance = ((high - low) / 2 / quantile) ** 2
    found = EstimateArrays(
        log_gain=point,
        standard_error=np.sqrt(request_variance + variance + kept),
        degrees_of_freedom=np.minimum(launch.degrees_of_freedom, times.num_requests - 1.0),
        log_lower=point - below,
        log_upper=point + above,
        request_variance=request_variance,
        launch_variance=variance,
        candidate_is_noisier=launch.candidate_is_noisier,
        kept_variance=kept,
    )
    reasons = (reason, "requests are a sample of the ratio of totals: Fieller with the launch noise in quadrature")
    terms = Terms(estimand="throughput", launch_rule=rule, per_token=per_token, confidence=confidence, reasons=reasons)
    return single(found, times, terms)
