"""Wilson intervals of measured shares, and what they say about a promise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lossguard.records import Verdict

_Z_95 = 1.959964


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """``count`` of ``number`` runs, with its two-sided 95 % interval.

    Source: Wilson 1927, JASA 22, 209-212.
    """

    count: int
    number: int

    @property
    def value(self) -> float:
        """The share itself; 0 of 0 is 0."""
        return self.count / self.number if self.number else 0.0

    @property
    def low(self) -> float:
        """Lower end."""
        return max(self._middle() - self._reach(), 0.0) if self.count else 0.0

    @property
    def high(self) -> float:
        """Upper end; 1 without runs."""
        return min(self._middle() + self._reach(), 1.0) if self.number and self.count < self.number else 1.0

    def _middle(self) -> float:
        number = max(self.number, 1)
        return (self.value + _Z_95**2 / (2 * number)) / (1 + _Z_95**2 / number)

    def _reach(self) -> float:
        number = max(self.number, 1)
        inside = self.value * (1 - self.value) / number + _Z_95**2 / (4 * number**2)
        return _Z_95 / (1 + _Z_95**2 / number) * math.sqrt(inside)

    def at_most(self, limit: float) -> Verdict:
        """PASS if the whole interval is at most ``limit``, FAIL if it is over it, else INCONCLUSIVE."""
        if self.high <= limit:
            return Verdict.PASS
        return Verdict.FAIL if self.low > limit else Verdict.INCONCLUSIVE

    def to_json(self) -> dict[str, Any]:
        """Count, number, share and interval."""
        return {
            "count": self.count,
            "number": self.number,
            "share": self.value,
            "low_95": self.low,
            "high_95": self.high,
        }

    def __str__(self) -> str:
        return f"{100 * self.value:.2f} % ({100 * self.low:.2f}-{100 * self.high:.2f})"
