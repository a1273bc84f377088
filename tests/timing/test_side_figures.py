"""Effects, diagnostics, control chart, planning, metrics and plot data."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from lossguard.errors import UsageError
from lossguard.timing.batch import judge_batch
from lossguard.timing.control_chart import control_chart, cusum, cusum_limit, standardised_levels
from lossguard.timing.crossover import log_ratios
from lossguard.timing.diagnostics import diagnostics, hodges_lehmann
from lossguard.timing.effects import device_effect, interference, mean_contrast, order_effect, period_effect
from lossguard.timing.estimator import estimate
from lossguard.timing.metrics import (
    RequestTrace,
    ServiceTarget,
    goodput,
    inter_token,
    latency,
    summarise,
    time_to_first_token,
)
from lossguard.timing.noise import noise_profile
from lossguard.timing.planning import Plan, minimum_promotable_gain
from lossguard.timing.plot_data import plot_data
from lossguard.timing.rules import Claim, faster
from lossguard.timing.simulation.model import Scenario, simulate
from tests.timing.campaigns import Made, make, profile


def test_effects_are_found_whatever_the_gain() -> None:
    times = make(Made(gain=0.3, device=0.02, period=0.05, noise=1e-4, launch=1e-4))
    assert device_effect(times).value == pytest.approx(-0.02, abs=2e-4)  # the second device is the slower one
    assert period_effect(times).value == pytest.approx(0.05, abs=2e-4)
    order = order_effect(times)
    assert order is not None
    assert order.lower < 0 < order.upper


def test_order_needs_both_orders() -> None:
    times = make(Made(pairs=8))
    same = replace(times, seconds=times.seconds[::2], num_tokens=times.num_tokens[::2], device=times.device[::2])
    assert order_effect(same) is None


def test_carry_over_shows_in_the_order_effect() -> None:
    times = make(Made(noise=1e-4, launch=1e-4))
    seconds = times.seconds.copy()
    seconds[::2, 1, 1] *= 1.05  # in every other pair the candidate's second run suffers from what ran before it
    order = order_effect(replace(times, seconds=seconds))
    assert order is not None
    assert order.excludes_zero
    assert order.value == pytest.approx(-0.5 * math.log(1.05), abs=1e-3)


def test_a_contrast_is_students_interval() -> None:
    values = np.array([0.01, 0.03, 0.02, 0.05])
    low, high = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
    found = mean_contrast("x", values)
    assert [found.lower, found.upper] == pytest.approx([low, high])
    assert math.isinf(mean_contrast("x", values[:1]).upper)


def test_interference_is_the_slowdown_by_a_neighbour() -> None:
    alone = np.exp(np.random.default_rng(1).normal(0, 0.6, (4, 16)))
    noise = np.exp(np.random.default_rng(2).normal(0, 0.001, (4, 16)))
    assert interference(1.02 * alone * noise, alone).value == pytest.approx(math.log(1.02), abs=1e-3)


def test_hodges_lehmann_and_wilcoxon_are_scipys() -> None:
    times = make(Made(gain=0.005))
    gains = log_ratios(times.seconds).mean(axis=0)
    found = diagnostics(times, estimate(times, profile()))
    averages = [(gains[i] + gains[j]) / 2 for i in range(32) for j in range(i, 32)]
    assert found.hodges_lehmann_log_gain == pytest.approx(float(np.median(averages)))
    assert found.wilcoxon_p == pytest.approx(float(stats.wilcoxon(gains, alternative="greater").pvalue))
    assert hodges_lehmann(gains)[1] < found.hodges_lehmann_log_gain
    assert hodges_lehmann(gains[:2])[1] == -math.inf


def test_medians_call_a_tail_regression_faster_and_the_skewness_warns() -> None:
    times = make(Made(requests=60, gain=0.01, losers=6))
    found = diagnostics(times, estimate(times, profile()))
    assert found.hodges_lehmann_lower > 0
    assert found.wilcoxon_p < 0.01
    assert estimate(times, profile()).log_lower < 0
    assert found.skewness < -2
    assert found.skew_corrected_log_lower < estimate(times, profile()).log_lower


def test_the_chart_lets_stock_alone_and_sees_it_leave() -> None:
    noise = noise_profile(make(Made(seed=5)))
    campaign = make(Made(seed=6))
    assert not control_chart(campaign, noise).is_off
    for factor in (1.03, 0.97):
        seconds = campaign.seconds.copy()
        seconds[:, :, 0] *= factor  # a sabotaged stock makes any candidate look fast
        found = control_chart(replace(campaign, seconds=seconds), noise)
        assert found.is_off
        assert float(np.mean(found.deviations)) == pytest.approx(math.log(factor), abs=0.004)
        assert "left its profile at pair 1 of 8" in found.reason


def test_the_chart_needs_levels() -> None:
    found = control_chart(make(Made()), replace(profile(), stock_levels=()))
    assert found.is_off
    assert "takes 8" in found.reason


def test_cusum_is_pages_recursion() -> None:
    scores = np.array([1.0, -2.0, 2.0, 3.0, -0.2])
    expected, total = [], 0.0
    for score in scores:
        total = max(0.0, total + score - 0.5)
        expected.append(total)
    np.testing.assert_allclose(cusum(scores), expected)


def test_the_chart_seldom_alarms_without_cause() -> None:
    rng = np.random.default_rng(21)
    profiles, levels = rng.normal(0, 1, (20_000, 8)), rng.normal(0, 1, (20_000, 6))
    scores = standardised_levels(levels, profiles, tolerance=0.0)
    alarms = np.maximum(cusum(scores).max(axis=1), cusum(-scores).max(axis=1)) > cusum_limit(8, 6)
    assert 0.005 < float(alarms.mean()) < 0.015


@pytest.mark.parametrize(("pairs", "requests"), [(4, 32), (8, 64)])
def test_the_minimum_promotable_gain_is_promoted_four_times_in_five(pairs: int, requests: int) -> None:
    """With a settled profile of the very noise that the campaigns have."""
    scenario = Scenario(name="plan", heavy_tails=False, launch_noise=0.002, num_requests=requests)
    a_a = simulate(np.random.default_rng(1), 1, 4_000, replace(scenario, gain=0.0)).seconds[0]
    many = log_ratios(a_a).mean(axis=-1)
    means = np.full(24, np.sqrt(np.mean(many**2))) * np.tile([1.0, -1.0], 12)
    noise = replace(profile(), pair_means=tuple(means.tolist()), request_sd=0.01)
    plan = Plan(num_pairs=pairs, num_requests=requests)
    found = minimum_promotable_gain(plan, noise)
    assert found.threshold < found.minimum_promotable_gain < found.threshold + 0.01
    assert found.num_servings == 4 * pairs * requests
    gain = float(np.log1p(found.minimum_promotable_gain))
    campaigns = simulate(np.random.default_rng(2), 2_000, pairs, replace(scenario, gain=gain))
    ratios = log_ratios(campaigns.seconds)
    verdicts = judge_batch(ratios, np.broadcast_to(means, (2_000, 24)), np.ones((requests, 1)), Claim())
    assert float(verdicts.passes.mean()) == pytest.approx(0.8, abs=0.04)


def test_more_pairs_promote_smaller_gains_and_divergence_costs_two_points() -> None:
    gains = [
        minimum_promotable_gain(Plan(num_pairs=pairs, num_requests=32), profile()).minimum_promotable_gain
        for pairs in (4, 8, 16)
    ]
    assert gains == sorted(gains, reverse=True)
    diverging = minimum_promotable_gain(Plan(num_pairs=8, num_requests=32, outputs_diverge=True), profile())
    assert diverging.threshold - 0.02 == pytest.approx(
        minimum_promotable_gain(Plan(num_pairs=8, num_requests=32), profile()).threshold
    )


def _trace(due: float, gaps: list[float], *, lag: float = 0.0, succeeded: bool = True) -> RequestTrace:
    return RequestTrace(due=due, sent=due + lag, tokens=tuple((due + np.cumsum(gaps)).tolist()), succeeded=succeeded)


def test_metrics_count_from_the_due_time_and_failures_are_never_good() -> None:
    traces = [_trace(0, [0.1, 0.2, 0.3]), _trace(1, [0.5, 0.1], lag=0.4), _trace(2, [0.01], succeeded=False)]
    first = time_to_first_token(traces)
    gaps, whole = inter_token(traces), latency(traces)
    assert first is not None
    assert gaps is not None
    assert whole is not None
    assert [first.count, first.mean, first.largest] == pytest.approx([2, 0.3, 0.5])
    assert [gaps.count, gaps.largest] == pytest.approx([3, 0.3])
    assert whole.largest == pytest.approx(0.6)
    found = goodput(traces, ServiceTarget(time_to_first_token=0.2), trace_seconds=4.0)
    assert (found.num_good, found.num_failed, found.num_requests) == (1, 1, 3)
    assert found.requests_per_second == 0.25
    assert found.tokens_per_second == 0.75


def test_falling_behind_the_trace_does_not_raise_goodput() -> None:
    late = [_trace(0, [10.0]), _trace(1, [19.0])]
    assert goodput(late, ServiceTarget(), trace_seconds=2.0).seconds == 20.0
    with pytest.raises(UsageError, match="LG1056"):
        goodput([], ServiceTarget(), trace_seconds=1.0)
    assert summarise([]) is None
    assert goodput([_trace(0, [0.1], succeeded=False)], ServiceTarget(), trace_seconds=1.0).num_good == 0


def test_plot_data_say_what_the_verdict_says() -> None:
    times = make(Made(gain=0.02))
    verdict = faster(times, profile())
    found = plot_data(times, profile(), verdict)
    assert len(found.pair_gains) == 8
    assert found.running_gains[-1] == pytest.approx(found.gain)
    assert all(
        low < gain < high
        for low, gain, high in zip(found.pair_lowers, found.pair_gains, found.pair_uppers, strict=True)
    )
    assert found.threshold == verdict.threshold
    assert plot_data(times, None, faster(times, None)).noise_gains == ()
