"""Losses that a mean hides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from lossguard.records import Verdict
from lossguard.timing.crossover import log_ratios
from lossguard.timing.guards import GuardLimits, judge_guards, shrunken_gains, stratum_guard, tail_guard
from lossguard.timing.rules import faster, not_slower
from lossguard.timing.strata import merge_strata
from tests.timing.campaigns import Made, make, profile


def test_a_gain_that_one_stratum_pays_for_fails_with_its_name() -> None:
    times = make(Made(requests=40, gain=0.07, losers=10))
    kinds = tuple("code" if index < 10 else "chat" for index in range(40))
    found = faster(replace(times, strata=kinds), profile())
    assert found.evidence["mean_verdict"] == "PASS"
    assert found.verdict is Verdict.FAIL
    assert any("code (" in reason for reason in found.reasons)
    assert not any("chat (" in reason for reason in found.reasons)


def test_a_loss_spread_over_all_strata_meets_the_tail_guard() -> None:
    found = faster(make(Made(requests=40, gain=0.05, losers=8)), profile())
    assert found.evidence["mean_verdict"] == "PASS"
    assert found.verdict is Verdict.FAIL
    assert found.evidence["guards"]["tail"]["num_slow"] == 8


def test_a_few_slow_requests_are_inconclusive_and_very_few_are_let_through() -> None:
    three = faster(make(Made(requests=40, gain=0.05, losers=3)), profile())
    assert three.evidence["mean_verdict"] == "PASS"
    assert three.verdict is Verdict.INCONCLUSIVE
    assert faster(make(Made(requests=40, gain=0.05, losers=2)), profile()).verdict is Verdict.PASS


def test_guards_move_with_a_wide_margin_only() -> None:
    slower = make(Made(gain=-0.04))
    assert not_slower(slower, profile(), margin=0.08).verdict is Verdict.PASS
    assert not_slower(slower, profile(), margin=0.01).verdict is Verdict.FAIL


def test_stratum_bounds_are_those_of_each_stratum_alone() -> None:
    """With the level of two tests and the launch part of the whole campaign."""
    times = make(Made(pairs=5, requests=30))
    ratios, aa = log_ratios(times.seconds), np.asarray(profile().pair_means)
    merged = merge_strata(times.strata)
    found = stratum_guard(ratios, merged.membership, aa, launch_rule="largest")
    known, observed = np.mean(aa**2), np.var(ratios.mean(axis=1), ddof=1)
    launch, freedom = (observed / 5, 4) if observed > known else (known / 5, 8)
    for index, name in enumerate(merged.names):
        means = ratios.mean(axis=0)[np.array(times.strata) == name]
        request = means.var(ddof=1) / means.size
        total = (request + launch) ** 2 / (request**2 / (means.size - 1) + launch**2 / freedom)
        upper = means.mean() + stats.t.ppf(0.975, total) * np.sqrt(request + launch)
        assert found.log_upper[index] == pytest.approx(upper)
        assert found.log_gain[index] == pytest.approx(means.mean())


def test_many_even_strata_seldom_breach() -> None:
    """Eight strata exactly at the limit share one error of 5 %."""
    rng = np.random.default_rng(8)
    ratios = np.log1p(-0.01) + rng.normal(0, 0.01, (3_000, 4, 64)) + rng.normal(0, 0.002, (3_000, 4, 1))
    aa = rng.normal(0, np.hypot(0.002, 0.01 / 8), (3_000, 8))
    strata = np.eye(8)[np.arange(64) % 8]
    breached = stratum_guard(ratios, strata, aa, launch_rule="largest").breached.any(axis=-1)
    assert float(breached.mean()) < 0.05
    assert breached.any()


def test_measurement_noise_is_no_tail() -> None:
    """Noise of 4 % a request: raw means of 4 pairs are under -3 % for one request in fifteen, true gains for none."""
    ratios = np.random.default_rng(3).normal(0.0, 0.04, (500, 4, 32))
    raw = (ratios.mean(axis=1) < np.log1p(-0.03)).mean()
    assert raw > 0.06
    assert tail_guard(ratios).within.mean() > 0.97
    assert not tail_guard(ratios).breached.any()


def test_shrunken_gains_scatter_as_true_gains_do() -> None:
    rng = np.random.default_rng(3)
    truth = rng.normal(0.01, 0.02, (400, 64))
    ratios = truth[:, None] + rng.normal(0, 0.03, (400, 4, 64))
    found = shrunken_gains(ratios)
    assert float(found.std(axis=1).mean()) == pytest.approx(0.02, rel=0.05)
    assert float(ratios.mean(axis=1).std(axis=1).mean()) > 0.024
    np.testing.assert_allclose(found.mean(axis=1), ratios.mean(axis=(1, 2)), atol=1e-12)


def test_every_request_lands_in_one_judged_stratum() -> None:
    names = ("a",) * 20 + ("b",) * 9 + ("c",) * 3 + ("d",) * 1
    merged = merge_strata(names)
    assert merged.membership.sum(axis=1).tolist() == [1.0] * 33
    assert merged.names == ("a", "together: b, c, d")
    assert merged.sizes == (20, 13)
    assert "judged together" in merged.reason
    assert merge_strata(("a",) * 8 + ("b",) * 8).names == ("a", "b")
    assert merge_strata(("a",) * 3).names == ("a",)
    assert merge_strata(("a", "b", "c")).names == ("together: a, b, c",)


def test_a_loss_in_a_tiny_stratum_cannot_hide() -> None:
    times = make(Made(requests=40, gain=0.05, losers=4))
    kinds = tuple(f"tiny {index}" if index < 8 and index % 2 == 0 else "rest" for index in range(40))
    found = judge_guards(
        log_ratios(times.seconds), kinds, np.asarray(profile().pair_means), launch_rule="largest", limits=GuardLimits()
    )
    assert [row["num_requests"] for row in found.evidence["strata"]] == [40]
    losing = tuple(f"tiny {index // 2}" if index < 4 else "chat" if index < 30 else "code" for index in range(40))
    assert merge_strata(losing).sizes == (26, 14)


def test_a_stratum_of_one_has_no_bound_and_breaches_nothing() -> None:
    ratios = np.full((4, 5), -0.5)
    strata = np.array([[1.0, 0.0]] + [[0.0, 1.0]] * 4)
    found = stratum_guard(ratios, strata, np.full(8, 0.001), launch_rule="largest")
    assert found.log_upper[0] == np.inf
    assert found.breached.tolist() == [False, True]
