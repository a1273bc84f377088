"""The event row's own false alarms, exactly: both arms have events alike, and stock explains a share of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lossguard.checks.events import FAIL_ALPHA, excess_p
from lossguard.selftest.statistics import StockStatistics

EVENT_NATS = 1.0
LIMIT = 0.03
_TAIL_SHARE = 0.25
_MOST_REQUESTS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """P(not PASS) and P(FAIL) of the event check on a lossless candidate."""

    source: str
    events_per_million_tokens: float  # unexplained ones
    num_requests_with_event: float  # expected, in each arm
    not_pass: float
    fail: float

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "source": self.source,
            "unexplained_events_per_million_tokens": self.events_per_million_tokens,
            "requests_with_event": self.num_requests_with_event,
            "not_pass": self.not_pass,
            "fail": self.fail,
        }


def event_rows(statistics: StockStatistics, num_requests: int, mean_tokens: float) -> tuple[EventRow, ...]:
    """By the tail of stock's gaps, and by what seeing no event leaves possible were none of them explained."""
    tail, highest = tail_rate(statistics)
    possible = _most_events(statistics)
    sources = (
        ("the exponential tail of stock's gaps", tail),
        ("the same, upper 95 %", highest),
        (f"{statistics.num_events} events in {statistics.num_tokens:,} tokens, upper 95 %", possible),
    )
    return tuple(_row(source, rate, num_requests, mean_tokens) for source, rate in sources)


def tail_rate(statistics: StockStatistics) -> tuple[float, float]:
    """Events per token: estimate and upper 95 % bound from the exponential fit to the largest quarter of the gaps.

    The mean of n exponential excesses times 2 n / scale is chi-squared with 2 n degrees of freedom.
    """
    from scipy.special import gammaincinv

    gaps = np.sort(statistics.mismatch_gap.astype(np.float64))
    number = max(int(len(gaps) * _TAIL_SHARE), 2)
    start = gaps[-number - 1] if number < len(gaps) else 0.0
    total = float((gaps[-number:] - start).sum())
    share = statistics.rate * number / len(gaps)
    scales = total / number, total / float(gammaincinv(number, 0.05))
    estimate, highest = (share * math.exp(-(EVENT_NATS - start) / scale) for scale in scales)
    return estimate, highest


def _most_events(statistics: StockStatistics) -> float:
    from scipy.special import gammaincinv

    return float(gammaincinv(statistics.num_events + 1, 0.95)) / statistics.num_tokens


def _row(source: str, rate: float, num_requests: int, mean_tokens: float) -> EventRow:
    share = -math.expm1(-rate * mean_tokens)
    not_pass, fail = false_alarms(share, num_requests)
    return EventRow(
        source=source,
        events_per_million_tokens=1e6 * rate,
        num_requests_with_event=num_requests * share,
        not_pass=not_pass,
        fail=fail,
    )


def false_alarms(share: float, num_requests: int) -> tuple[float, float]:
    """P(not PASS), P(FAIL) where each request of either arm has an unexplained event with probability ``share``."""
    from scipy.stats import binom

    chances = binom.pmf(np.arange(min(num_requests, _MOST_REQUESTS) + 1), num_requests, share)
    not_pass = fail = 0.0
    for candidate, chance in enumerate(chances):
        for stock in range(candidate):
            both = float(chance * chances[stock])
            not_pass += both
            if excess_p(candidate, stock, num_requests) < FAIL_ALPHA:
                fail += both
    return not_pass, fail
