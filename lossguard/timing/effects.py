"""What is not the gain: the difference between devices, drift between runs, order, and neighbours. For reports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossguard.timing.base import STOCK, BoolArray, FloatArray, PairTimes
from lossguard.timing.crossover import check_pairs, log_ratios
from lossguard.timing.estimator import t_quantile

TWO_SIDED = 0.975


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A log time ratio with its two-sided 95 % interval (infinite where one value is all there is)."""

    name: str
    value: float
    standard_error: float
    degrees_of_freedom: int
    lower: float
    upper: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.lower > 0 or self.upper < 0


def mean_contrast(name: str, values: FloatArray) -> Contrast:
    """Student's interval of the mean of independent values [K]."""
    size, mean = values.size, float(values.mean())
    error = float(values.std(ddof=1) / np.sqrt(size)) if size > 1 else np.inf
    return _contrast(name, mean, error, max(size - 1, 1))


def _contrast(name: str, value: float, error: float, freedom: int) -> Contrast:
    reach = float(t_quantile(np.asarray(float(freedom)), TWO_SIDED)) * error
    return Contrast(
        name=name,
        value=value,
        standard_error=error,
        degrees_of_freedom=freedom,
        lower=value - reach,
        upper=value + reach,
    )


def stock_started_low(times: PairTimes) -> BoolArray:
    """[M] whether stock's first run of the pair was on the device with the lower index."""
    return np.asarray(times.device[:, 0, STOCK] < times.device[:, 1, STOCK])


def device_effect(times: PairTimes) -> Contrast:
    """Log seconds on the device with the lower index minus those on the other; the gain cancels.

    On one device this is the effect of going first in an ABBA block: first run's log ratio minus the second's, halved.
    """
    check_pairs(times)
    logs = np.log(times.seconds).mean(axis=-1)  # [M, 2, 2]
    ratios = logs[..., 0] - logs[..., 1]  # stock - candidate
    halves = 0.5 * (ratios[:, 0] - ratios[:, 1])
    if times.design == "one-device":
        return mean_contrast("order in an ABBA block", halves)
    return mean_contrast("device", np.where(stock_started_low(times), halves, -halves))


def period_effect(times: PairTimes) -> Contrast:
    """Log seconds of second runs minus those of first runs; gain and devices cancel."""
    check_pairs(times)
    runs = np.log(times.seconds).mean(axis=(-1, -2))
    return mean_contrast("period", runs[:, 1] - runs[:, 0])


def order_effect(times: PairTimes) -> Contrast | None:
    """Gain of pairs that stock began on the lower device minus gain of the others; None with one order only.

    Anything but 0 means carry-over: what ran first on a device changed what ran after it.
    """
    check_pairs(times)
    gains = log_ratios(times.seconds).mean(axis=-1)
    low = stock_started_low(times)
    first, second = gains[low], gains[~low]
    freedom = gains.size - 2
    if first.size == 0 or second.size == 0 or freedom < 1:
        return None
    squares = ((first - first.mean()) ** 2).sum() + ((second - second.mean()) ** 2).sum()
    error = float(np.sqrt(squares / freedom * (1 / first.size + 1 / second.size)))
    return _contrast("order", float(first.mean() - second.mean()), error, freedom)


def interference(beside_another: FloatArray, alone: FloatArray) -> Contrast:
    """Log slowdown of stock by a neighbour, from seconds [K, N] of K runs beside another system and K runs alone.

    Runs are matched: row k of both was served on the same device with the same requests. The unit is a run.
    """
    return mean_contrast("interference", (np.log(beside_another) - np.log(alone)).mean(axis=-1))
