from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lossguard.checks.base import Arm
from lossguard.checks.beta_binomial import BetaBinomial, draw, fit_by_moments, predictive_tail
from lossguard.checks.burst import BurstCheck
from lossguard.checks.burst_finding import BurstFinding, BurstInput, RequestCounts, find_bursts
from lossguard.checks.multiplicity import adjusted_p_values
from lossguard.records import Verdict, require_finite
from tests.checks.conftest import LosslessRun


@given(
    st.integers(1, 400),
    st.floats(0, 1),
    st.floats(1e-4, 0.2),
    st.floats(1e-3, 0.3),
)
def test_tail_is_scipys_beta_binomial(trials: int, share: float, rate: float, rho: float) -> None:
    hits = round(share * trials)
    strength = (1 - rho) / rho
    # summed upwards: scipy's own tail is 1 - cdf, which is rounding only under 1e-12
    above = np.arange(hits, trials + 1)
    expected = stats.betabinom.pmf(above, trials, rate * strength, (1 - rate) * strength).sum() if hits else 1.0
    fit = BetaBinomial(share=np.array([rate]), rho=np.array([rho]))
    tail = predictive_tail(np.array([float(hits)]), np.array([float(trials)]), fit)[0]
    assert tail == pytest.approx(expected, rel=1e-8, abs=1e-300)


def test_fit_finds_the_parameters_it_was_drawn_from() -> None:
    trials = np.full(20_000, 100.0)
    fit = BetaBinomial(share=np.array([0.02]), rho=np.array([0.03]))
    found = fit_by_moments(draw(fit, trials, np.random.default_rng(1)), trials)
    assert found.share[0] == pytest.approx(0.02, rel=0.05)
    assert found.rho[0] == pytest.approx(0.03, rel=0.1)


def test_fit_without_a_hit_is_positive_and_keeps_the_smallest_rho() -> None:
    found = fit_by_moments(np.zeros((1, 50)), np.full(50, 20.0))
    assert found.share[0] == pytest.approx(0.5 / 1001)
    assert found.rho[0] == 1e-3


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_adjusted_p_values_are_scipys(p_values: list[float]) -> None:
    expected = stats.false_discovery_control(np.array(p_values))
    assert adjusted_p_values(np.array(p_values)) == pytest.approx(expected)


def counts_of(mismatches: np.ndarray) -> RequestCounts:
    return RequestCounts(mismatches=mismatches.astype(np.float64), tokens=np.full(len(mismatches), 100.0))


def finding(candidate: dict[int, int], stock: dict[int, int]) -> BurstFinding:
    """240 requests x 100 tokens at 0.5 %, with the given counts put at single requests."""
    generator = np.random.default_rng(3)
    arms = [generator.binomial(100, 0.005, size=240) for _ in range(3)]
    for arm, places in zip(arms, (candidate, stock), strict=False):
        for index, number in places.items():
            arm[index] = number
    return find_bursts(
        BurstInput(
            candidate=counts_of(arms[0]),
            stock=counts_of(arms[1]),
            calibration=counts_of(arms[2]),
            cluster=np.arange(240),
            seed=1,
        )
    )


def test_one_request_beyond_chance_fails_alone() -> None:
    found = finding({7: 40}, {})
    assert found.fails
    assert found.num_candidate_prompts == 1
    assert found.smallest_counted_p < 1e-6
    assert found.sign_p > 0.01


def test_a_flag_does_not_count_where_stocks_reply_is_flagged_too() -> None:
    found = finding({7: 40}, {7: 25})
    assert found.flagged[7]
    assert not found.counted.any()
    assert not found.fails


def test_moderate_flags_fail_only_if_they_beat_stocks() -> None:
    places = {index: 8 for index in range(0, 80, 8)}
    other = {index + 3: 8 for index in range(0, 80, 8)}
    alone, matched = finding(places, {}), finding(places, other)
    assert alone.num_candidate_prompts == 10
    assert alone.sign_p < 0.01
    assert alone.smallest_counted_p > 1e-6
    assert alone.fails
    assert not matched.fails


def test_two_mismatches_never_count() -> None:
    # stock so clean that two in one reply are improbable
    zeros = counts_of(np.zeros(240))
    hits = np.zeros(240)
    hits[:20] = 2
    found = find_bursts(
        BurstInput(candidate=counts_of(hits), stock=zeros, calibration=zeros, cluster=np.arange(240), seed=1)
    )
    assert not found.counted.any()


def corrupted(arm: Arm, index: int) -> Arm:
    gap = arm.scores.gap.copy()
    start = int(arm.scores.offsets[index])
    gap[start + 5 : start + 30] = 0.3
    return replace(arm, scores=replace(arm.scores, gap=gap))


def test_the_check_names_the_request(lossless: LosslessRun) -> None:
    assert BurstCheck().run(lossless.given).verdict is Verdict.PASS
    result = BurstCheck().run(replace(lossless.given, candidate=corrupted(lossless.given.candidate, 11)))
    assert result.verdict is Verdict.FAIL
    assert result.evidence["flagged"][0]["request_id"] == "r-0011"
    require_finite(result.to_json())


def test_flags_in_stock_alone_pass(lossless: LosslessRun) -> None:
    result = BurstCheck().run(replace(lossless.given, stock=corrupted(lossless.given.stock, 11)))
    assert result.verdict is Verdict.PASS
