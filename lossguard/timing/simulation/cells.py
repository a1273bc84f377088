"""Counts of simulated campaigns, and the bars that they are held against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from lossguard.records import Verdict

Z_99 = 2.5758293035489004


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a share must lie between."""

    low: float = 0.0
    high: float = 1.0
    chance_may_exceed: bool = False  # ``high`` says that a bound is not wastefully wide: over it by chance is kept

    def __str__(self) -> str:
        if self.low == 0:
            return f"at most {100 * self.high:g} %"
        return f"{100 * self.low:g}-{100 * self.high:g} %" if self.high < 1 else f"at least {100 * self.low:g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One figure of a table: which table, row and column, and what is promised for it (None: reported only)."""

    table: str
    row: str
    column: str
    limits: Limits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Campaigns with the outcome of a cell, and the sum of a size that goes with it (half-width, pairs)."""

    hits: int
    number: int
    total: float = 0.0

    def __add__(self, other: Count) -> Count:
        return Count(hits=self.hits + other.hits, number=self.number + other.number, total=self.total + other.total)

    @property
    def share(self) -> float:
        """Of campaigns with the outcome."""
        return self.hits / self.number

    @property
    def mean(self) -> float:
        """Of the size that goes with it."""
        return self.total / self.number

    @property
    def interval(self) -> tuple[float, float]:
        """Two-sided 99 % Monte Carlo interval of the share (Wilson 1927)."""
        middle = (self.share + Z_99**2 / (2 * self.number)) / (1 + Z_99**2 / self.number)
        spread = self.share * (1 - self.share) / self.number + Z_99**2 / (4 * self.number**2)
        reach = Z_99 * np.sqrt(spread) / (1 + Z_99**2 / self.number)
        return max(float(middle - reach), 0.0), min(float(middle + reach), 1.0)

    def meets(self, limits: Limits) -> Verdict:
        """PASS if the share lies within the limits, FAIL if its whole interval lies outside, else INCONCLUSIVE."""
        low, high = self.interval
        if high < limits.low or low > limits.high:
            return Verdict.FAIL
        under = self.share <= limits.high or limits.chance_may_exceed
        return Verdict.PASS if limits.low <= self.share and under else Verdict.INCONCLUSIVE


Counts = Mapping[Cell, Count]


def count(outcome: np.ndarray, size: np.ndarray | None = None) -> Count:
    """The count of one column of outcomes [S], with the sum of a size [S]."""
    total = 0.0 if size is None else float(np.sum(size))
    return Count(hits=int(np.count_nonzero(outcome)), number=int(outcome.size), total=total)


def add_up(parts: Iterable[Counts]) -> dict[Cell, Count]:
    """The sum of counts, cell by cell, in the order of the parts."""
    result: dict[Cell, Count] = {}
    for part in parts:
        for cell, value in part.items():
            result[cell] = result[cell] + value if cell in result else value
    return result
