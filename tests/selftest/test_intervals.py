from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from lossguard.records import Verdict
from lossguard.selftest.intervals import Share


@given(st.integers(1, 5000).flatmap(lambda number: st.tuples(st.integers(0, number), st.just(number))))
def test_the_interval_is_wilsons(pair: tuple[int, int]) -> None:
    count, number = pair
    low, high = proportion_confint(count, number, method="wilson")
    share = Share(count=count, number=number)
    assert share.low == pytest.approx(low if count else 0.0, abs=1e-6)
    assert share.high == pytest.approx(high if count < number else 1.0, abs=1e-6)
    assert share.low <= share.value <= share.high


@pytest.mark.parametrize(
    ("count", "verdict"), [(0, Verdict.PASS), (30, Verdict.PASS), (50, Verdict.INCONCLUSIVE), (80, Verdict.FAIL)]
)
def test_a_promise_is_kept_broken_or_open(count: int, verdict: Verdict) -> None:
    assert Share(count=count, number=1000).at_most(0.05) is verdict


def test_nothing_measured_promises_nothing() -> None:
    assert Share(count=0, number=0).at_most(0.5) is Verdict.INCONCLUSIVE
