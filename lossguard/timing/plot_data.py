"""What the plot of a report shows: one gain per pair, its interval, the A/A band and the promotion line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossguard.timing.base import NoiseProfile, PairTimes, TimingVerdict
from lossguard.timing.crossover import judged_seconds, log_ratios, log_throughputs
from lossguard.timing.estimator import profile_values, t_quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotData:
    """Gains as fractions (0.01 is 1 %); bounds of pairs are two-sided 95 % over their requests."""

    pair_gains: tuple[float, ...]
    pair_lowers: tuple[float, ...]
    pair_uppers: tuple[float, ...]
    running_gains: tuple[float, ...]  # mean after each pair
    gain: float
    gain_lower: float  # one-sided 95 %
    gain_upper: float
    threshold: float
    noise_gains: tuple[float, ...]  # A/A pairs
    noise_band: float  # rms of A/A pairs: the band is 0 +- this


def plot_data(times: PairTimes, noise: NoiseProfile | None, verdict: TimingVerdict) -> PlotData:
    """Everything that the plot of a verdict needs.

    Raises
    ------
    UsageError
        LG1050, LG1051, LG1052.
    """
    seconds = judged_seconds(times, per_token=verdict.estimate.per_token)
    ratios = log_ratios(seconds)
    throughput = verdict.estimate.estimand == "throughput"
    pairs = log_throughputs(seconds) if throughput else ratios.mean(axis=1)
    reach = np.zeros(times.num_pairs)
    if times.num_requests > 1:
        quantile = float(t_quantile(np.asarray(times.num_requests - 1.0), 0.975))
        reach = quantile * ratios.std(axis=1, ddof=1) / np.sqrt(times.num_requests)
    running = np.cumsum(pairs) / np.arange(1, times.num_pairs + 1)
    usable = noise is not None and noise.num_pairs > 0
    known = profile_values(noise, verdict.estimate.estimand) if usable and noise is not None else np.zeros(0)
    band = float(np.sqrt(np.mean(known**2))) if known.size else 0.0
    return PlotData(
        pair_gains=tuple(np.expm1(pairs).tolist()),
        pair_lowers=tuple(np.expm1(pairs - reach).tolist()),
        pair_uppers=tuple(np.expm1(pairs + reach).tolist()),
        running_gains=tuple(np.expm1(running).tolist()),
        gain=verdict.estimate.gain,
        gain_lower=verdict.estimate.gain_lower,
        gain_upper=verdict.estimate.gain_upper,
        threshold=verdict.threshold,
        noise_gains=tuple(np.expm1(known).tolist()),
        noise_band=float(np.expm1(band)),
    )
