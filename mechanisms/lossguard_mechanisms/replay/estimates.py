"""Tokens per step with a confidence interval by request.

With x_i tokens and n_i steps of cluster i of C (a prompt with its repeats, or prompts that share text), tau is the
ratio of sums, sum x / sum n. Its linearised standard error is

    se^2 = C / (C - 1) * sum (x_i - tau n_i)^2 / (sum n)^2

and the interval is tau -+ t(C - 1) se (Cochran 1977, chapter 6). Requests, not steps, are what is drawn: steps of one
reply are alike. The gain over another policy is the ratio of their steps on the same tokens, cluster by cluster, in the
same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lossguard_mechanisms.replay.recording import IntArray

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A ratio of sums. ``half_width`` is None where it has no finite value: fewer than two clusters, or no steps."""

    value: float | None
    half_width: float | None
    num_clusters: int
    numerator: int
    denominator: int

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return None if self.value is None or self.half_width is None else self.value - self.half_width

    @property
    def high(self) -> float | None:
        """Upper end of the interval."""
        return None if self.value is None or self.half_width is None else self.value + self.half_width


def ratio_of_sums(
    numerator: IntArray, denominator: IntArray, clusters: IntArray, *, confidence: float = CONFIDENCE
) -> Estimate:
    """Sum of ``numerator`` over sum of ``denominator`` [R], with ``clusters`` [R] numbered from 0.

    Clusters whose denominator is 0 say nothing about the ratio and are left out.
    """
    above, below = _sums(numerator, clusters), _sums(denominator, clusters)
    above, below = above[below > 0], below[below > 0]
    count, total = len(below), float(below.sum())
    value = float(above.sum()) / total if count else None
    half_width = None
    if value is not None and count > 1:
        residuals = above - value * below
        error = math.sqrt(count / (count - 1) * float(residuals @ residuals)) / total
        half_width = _quantile_of_t(count - 1, 0.5 + confidence / 2) * error
    return Estimate(
        value=value, half_width=half_width, num_clusters=count, numerator=int(above.sum()), denominator=int(total)
    )


def number_clusters(labels: tuple[str, ...]) -> IntArray:
    """[R] each label's number in the order of first appearance."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.int64)


def _sums(values: IntArray, clusters: IntArray) -> NDArray[np.float64]:
    return np.asarray(np.bincount(clusters, weights=values.astype(np.float64)), dtype=np.float64)


def _quantile_of_t(degrees: int, probability: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))
