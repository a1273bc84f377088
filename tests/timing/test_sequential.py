"""Early looks and re-submissions share 5 %."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from lossguard.errors import UsageError
from lossguard.records import Verdict
from lossguard.timing.boundary import crossing_probability, obrien_fleming_constant
from lossguard.timing.confidence_sequence import mixture_radius, running_lower
from lossguard.timing.noise import upper_factor
from lossguard.timing.rules import Claim, faster
from lossguard.timing.sequential import SequentialPlan, boundaries, observed_upper, sequential_arrays, taken_looks
from lossguard.timing.sequential_verdict import first_pairs, judge_sequentially
from tests.timing.campaigns import Made, make, profile

PLAN = SequentialPlan(looks=(4, 8, 12))


@pytest.mark.parametrize(
    ("looks", "alpha", "constant"),
    [  # Jennison and Turnbull, Group Sequential Methods, table 2.3 (two-sided .05), and one look
        ((1,), 0.025, 1.960),
        ((1, 2), 0.025, 1.977),
        ((1, 2, 3, 4, 5), 0.025, 2.040),
        (tuple(range(1, 11)), 0.025, 2.087),
    ],
)
def test_constants_are_those_of_the_tables(looks: tuple[int, ...], alpha: float, constant: float) -> None:
    assert obrien_fleming_constant(looks, alpha) == pytest.approx(constant, abs=6e-4)


def test_the_boundary_of_uneven_looks_is_crossed_as_often_as_it_says() -> None:
    looks = (4, 5, 9, 20)
    sums = np.random.default_rng(2).standard_normal((100_000, 20)).cumsum(axis=1)[:, np.array(looks) - 1]
    constant = obrien_fleming_constant(looks, 0.05)
    assert float((sums > constant * np.sqrt(20)).any(axis=1).mean()) == pytest.approx(0.05, abs=0.0025)
    drifting = sums + 0.3 * np.array(looks)
    expected = crossing_probability(looks, constant, drift=0.3)
    assert float((drifting > constant * np.sqrt(20)).any(axis=1).mean()) == pytest.approx(expected, abs=0.006)


def test_a_plan_computes_its_boundary_for_its_share_of_the_error() -> None:
    assert PLAN.looks_alpha + PLAN.pooling_alpha == pytest.approx(0.05)
    assert PLAN.constant == pytest.approx(obrien_fleming_constant((4, 8, 12), 0.04))
    assert SequentialPlan(looks=(4,), pooling_share=0.0).constant == pytest.approx(stats.norm.ppf(0.95))
    values = boundaries(PLAN, np.array([4, 8, 12]))
    np.testing.assert_allclose(values, PLAN.constant * np.sqrt(12 / np.array([4, 8, 12])))


def test_looks_after_the_plan_are_the_confidence_sequence() -> None:
    assert taken_looks(PLAN, 14).tolist() == [4, 8, 12, 13, 14]
    assert taken_looks(PLAN, 9).tolist() == [4, 8]
    assert taken_looks(replace(PLAN, pooling_share=0.0), 14).tolist() == [4, 8, 12]
    later = boundaries(PLAN, np.array([13]))[0]
    assert later == pytest.approx(float(mixture_radius(np.array(13), 1.0, 0.01)) * np.sqrt(13))


@pytest.mark.parametrize("looks", [(), (3, 8), (4, 4), (8, 4)])
def test_plans_that_break_the_error_are_refused(looks: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="LG1055"):
        SequentialPlan(looks=looks)


def test_the_confidence_sequence_holds_at_all_pairs_together() -> None:
    means = np.random.default_rng(5).standard_normal((20_000, 80))
    lower = running_lower(means, np.ones(20_000))
    assert 0.002 < float((lower > 0).any(axis=1).mean()) < 0.05


def test_the_observed_bound_is_that_of_the_first_pairs() -> None:
    values = np.random.default_rng(5).normal(3, 2, (2, 9))
    found = observed_upper(values, np.array([4, 9]))
    for row in range(2):
        assert found[row, 0] == pytest.approx(values[row, :4].std(ddof=1) * upper_factor(3, 0.75))
        assert found[row, 1] == pytest.approx(values[row].std(ddof=1) * upper_factor(8, 0.75))


@pytest.mark.parametrize("noisier", [1.0, 1.5, 4.0])
def test_false_promotions_stay_under_five_percent_for_noisy_candidates_too(noisier: float) -> None:
    """20,000 campaigns at the threshold; the deviation is the 75 % bound of 8 A/A pairs."""
    rng = np.random.default_rng(7)
    deviation = np.sqrt((rng.standard_normal((20_000, 8)) ** 2).mean(axis=1)) * upper_factor(8, 0.75)
    pairs = noisier * rng.standard_normal((20_000, 60))
    plan = SequentialPlan(looks=tuple(range(4, 21)))
    found = sequential_arrays(pairs, np.zeros(20_000), deviation, plan)
    assert 0.005 < float(found.crossed.any(axis=1).mean()) < 0.05


def test_a_large_gain_is_promoted_at_the_first_look() -> None:
    found = judge_sequentially(make(Made(pairs=4, gain=0.1)), profile(), PLAN, Claim())
    assert found.action == "promote"
    assert found.verdict.verdict is Verdict.PASS
    assert found.next_look is None
    assert found.evidence["taken"][0]["crossed"]


def test_a_fixed_sample_pass_without_a_crossing_is_inconclusive() -> None:
    """Just over the bar after 5 pairs, between two looks."""
    times = make(Made(pairs=5, gain=0.1))
    assert faster(times, profile()).verdict is Verdict.PASS
    plan = SequentialPlan(looks=(8, 12))
    found = judge_sequentially(times, profile(), plan, Claim())
    assert (found.action, found.next_look) == ("continue", 8)
    assert found.verdict.verdict is Verdict.INCONCLUSIVE
    assert "boundary" in found.verdict.reasons[0]


def test_a_dead_candidate_stops_as_futile() -> None:
    found = judge_sequentially(make(Made(pairs=4, gain=-0.1)), profile(), PLAN, Claim())
    assert found.action == "stop-futile"
    assert found.verdict.verdict is Verdict.FAIL


def test_a_crossing_without_the_guards_does_not_promote() -> None:
    times = make(Made(pairs=8, requests=40, gain=0.055, losers=8))
    found = judge_sequentially(times, profile(), PLAN, Claim())
    assert any(look["crossed"] for look in found.evidence["taken"])
    assert found.action != "promote"
    assert found.verdict.verdict is Verdict.FAIL


def test_used_up_pairs_end_the_test_or_go_on_with_what_is_kept() -> None:
    times = make(Made(pairs=12, gain=0.0185))
    found = judge_sequentially(times, profile(), PLAN, Claim())
    assert (found.action, found.next_look) == ("stop-exhausted", 13)
    ended = judge_sequentially(times, profile(), replace(PLAN, pooling_share=0.0), Claim())
    assert (ended.action, ended.next_look) == ("stop-exhausted", None)


def test_a_resubmission_continues_the_same_test() -> None:
    """What an early look decided is found again when later pairs follow it."""
    times = make(Made(pairs=12, gain=0.1))
    early = judge_sequentially(first_pairs(times, 4), profile(), PLAN, Claim())
    late = judge_sequentially(times, profile(), PLAN, Claim())
    assert early.action == late.action == "promote"
    assert late.verdict.estimate.num_pairs == early.verdict.estimate.num_pairs == 4


def test_no_profile_means_no_sequential_verdict() -> None:
    found = judge_sequentially(make(Made(pairs=4, gain=0.5)), None, PLAN, Claim())
    assert found.action == "continue"
    assert found.verdict.verdict is Verdict.INCONCLUSIVE
