from __future__ import annotations

import numpy as np
import pytest

from lossguard.checks.events import FAIL_ALPHA, excess_p
from lossguard.selftest.event_row import event_rows, false_alarms, tail_rate
from lossguard.selftest.statistics import StockStatistics


@pytest.mark.parametrize("share", [0.0005, 0.004, 0.02])
def test_false_alarms_are_those_of_drawn_runs(share: float) -> None:
    rng = np.random.default_rng(4)
    candidate, stock = rng.binomial(240, share, size=(2, 20_000))
    expected = false_alarms(share, 240)
    failed = np.mean(
        [excess_p(int(ours), int(theirs), 240) < FAIL_ALPHA for ours, theirs in zip(candidate, stock, strict=True)]
    )
    assert (candidate > stock).mean() == pytest.approx(expected[0], abs=0.012)
    assert failed == pytest.approx(expected[1], abs=0.005)
    assert expected[1] <= FAIL_ALPHA


def test_the_tail_of_exponential_gaps_is_found(statistics: StockStatistics) -> None:
    """Gaps are delta plus an exponential of 0.06 nats: P(gap > 1) is exp(-(1 - 0.0625) / 0.06)."""
    estimate, highest = tail_rate(statistics)
    true = statistics.rate * np.exp(-(1 - 0.0625) / 0.06)
    assert estimate < 30 * true
    assert true < highest


def test_rows_grow_with_the_run(statistics: StockStatistics) -> None:
    small, large = (event_rows(statistics, number, 60.0) for number in (200, 1000))
    assert [row.source for row in small] == [row.source for row in large]
    assert all(first.not_pass < second.not_pass for first, second in zip(small, large, strict=True))
