"""A pattern and its score: how much shorter it makes the description of where the errors are."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lossguard.diagnosis.families import Family

MINIMUM_SCORE_NATS = 7.0
"""exp(-7) is under one in a thousand: what chance alone would have to do."""
MINIMUM_COVERAGE = 0.8
LARGEST_LEAK = 0.1
AMBIGUOUS_NATS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One way to say where the errors are, or which ids they serve.

    ``coverage`` is the share of the excess errors that it holds, ``exposure`` the share that it would hold if it
    meant nothing, ``effective`` the number of independent errors behind both, ``num_tried`` how many patterns of
    its kind were looked at.
    """

    family: Family
    sentence: str
    coverage: float
    exposure: float
    effective: float
    num_tried: int

    @property
    def score_nats(self) -> float:
        """n KL(coverage || exposure) - ln(patterns tried): the gain in description length.

        0 where coverage is not above exposure. Source: Rissanen 1978, Automatica 14, 465-471.
        """
        if not self.coverage > self.exposure:
            return 0.0
        gain = self.effective * _divergence(self.coverage, self.exposure)
        return max(0.0, gain - math.log(max(self.num_tried, 1)))

    @property
    def leak(self) -> float:
        """Rate of errors outside over the rate inside; 0 for a perfect pattern."""
        inside = self.coverage / max(self.exposure, 1e-12)
        outside = (1 - self.coverage) / max(1 - self.exposure, 1e-12)
        return outside / inside if inside > 0 else math.inf

    @property
    def holds(self) -> bool:
        """Whether it says enough, about nearly all errors, and hardly any lie beside it."""
        return self.score_nats >= MINIMUM_SCORE_NATS and self.coverage >= MINIMUM_COVERAGE and self.leak <= LARGEST_LEAK


def _divergence(seen: float, expected: float) -> float:
    """Kullback-Leibler divergence of two coins, in nats."""
    expected = min(max(expected, 1e-9), 1 - 1e-9)
    total = 0.0
    for left, right in ((seen, expected), (1 - seen, 1 - expected)):
        total += left * math.log(left / right) if left > 0 else 0.0
    return total


def best(patterns: list[Pattern]) -> Pattern | None:
    """The pattern with the highest score among those that hold."""
    return max((item for item in patterns if item.holds), key=lambda item: item.score_nats, default=None)
