"""The estimator against formulas written out with scipy.stats, against the reference tables, and its invariances."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lossguard.errors import UsageError
from lossguard.timing.base import Estimand, FloatArray, LaunchRule, NoiseProfile, PairTimes
from lossguard.timing.crossover import log_ratios
from lossguard.timing.estimator import estimate, estimate_arrays, satterthwaite
from lossguard.timing.fieller import fieller_logs, throughput_of_population
from lossguard.timing.launch_variance import choose_launch_rule, launch_variance
from lossguard.timing.simulation.model import Scenario, simulate
from tests.timing.campaigns import Made, make, profile, with_seconds


def reference(differences: FloatArray, aa: FloatArray, rule: LaunchRule) -> tuple[float, float]:
    """Point and lower bound, one campaign, in scalars."""
    pairs, requests = differences.shape
    known, observed = float(np.mean(aa**2)), float(np.var(differences.mean(axis=1), ddof=1)) if pairs > 1 else 0.0
    variance, freedom = known, float(aa.size)
    if rule == "largest" and observed > known:
        variance, freedom = observed, pairs - 1.0
    if rule == "pooled":
        total = aa.size + pairs - 1.0
        variance, freedom = (aa.size * known + (pairs - 1) * observed) / total, total
        if observed / known > stats.f.ppf(0.9, pairs - 1, aa.size):
            variance, freedom = observed, pairs - 1.0
    request = float(np.var(differences.mean(axis=0), ddof=1)) / requests
    launch = variance / pairs
    total_freedom = (request + launch) ** 2 / (request**2 / (requests - 1) + launch**2 / freedom)
    point = float(differences.mean())
    return point, point - float(stats.t.ppf(0.95, total_freedom)) * math.sqrt(request + launch)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("pairs", "rule"), [(1, "profile"), (2, "pooled"), (3, "pooled"), (4, "largest"), (8, "largest")]
)
def test_bounds_are_those_of_the_written_out_formula(pairs: int, rule: LaunchRule, seed: int) -> None:
    launch = 0.002 if seed % 2 else 0.02  # both branches of every rule
    times = make(Made(pairs=pairs, gain=0.01, candidate_launch=launch, seed=seed))
    noise = profile()
    found = estimate(times, noise)
    point, lower = reference(log_ratios(times.seconds), np.asarray(noise.pair_means), rule)
    assert found.launch_rule == rule == choose_launch_rule(pairs)[0]
    assert found.log_gain == pytest.approx(point, abs=1e-14)
    assert found.log_lower == pytest.approx(lower, abs=1e-12)
    assert found.log_upper == pytest.approx(2 * point - lower, abs=1e-12)
    assert found.variance_parts["launch_from_observed"] in {0.0, 1.0}


def test_both_branches_of_the_launch_rules_are_used() -> None:
    aa = np.full((2, 8), 0.002)
    quiet, loud = np.array([0.0, 0.001, 0.0, 0.001]), np.array([-0.02, 0.02, -0.02, 0.02])
    for rule in ("largest", "pooled"):
        found = launch_variance(np.stack([quiet, loud]), aa, rule)
        assert found.candidate_is_noisier.tolist() == [False, True]
        assert found.variance[1] == pytest.approx(np.var(loud, ddof=1))
        assert found.degrees_of_freedom.tolist() == [11.0 if rule == "pooled" else 8.0, 3.0]


def test_one_campaign_is_a_batch_of_one() -> None:
    noise = profile()
    campaigns = [make(Made(gain=0.02, seed=seed)) for seed in range(5)]
    ratios = np.stack([log_ratios(times.seconds) for times in campaigns])
    batch = estimate_arrays(ratios, np.asarray(noise.pair_means), launch_rule="largest")
    for index, times in enumerate(campaigns):
        assert estimate(times, noise).log_lower == pytest.approx(float(batch.log_lower[index]), abs=1e-15)


@pytest.mark.parametrize("estimand", ["population", "suite", "throughput"])
@given(order=st.permutations(range(12)), scale=st.floats(1e-3, 1e3))
def test_the_order_of_requests_and_the_unit_of_time_do_not_matter(
    estimand: Estimand, order: list[int], scale: float
) -> None:
    times = make(Made(pairs=4, requests=12, gain=0.02))
    moved = replace(times, seconds=scale * times.seconds[..., order])
    before, after = (estimate(one, profile(), estimand=estimand) for one in (times, moved))
    assert after.log_lower == pytest.approx(before.log_lower, abs=1e-12)
    assert after.log_upper == pytest.approx(before.log_upper, abs=1e-12)


@given(shift=st.floats(-0.5, 0.5))
def test_a_faster_candidate_moves_the_bounds_by_as_much(shift: float) -> None:
    times = make(Made(pairs=4, requests=12))
    seconds = times.seconds.copy()
    seconds[:, :, 1] *= math.exp(-shift)
    before, after = estimate(times, profile()), estimate(replace(times, seconds=seconds), profile())
    assert after.log_lower - before.log_lower == pytest.approx(shift, abs=1e-12)


@pytest.mark.parametrize("estimand", ["population", "suite"])
def test_exchanging_the_arms_turns_the_sign(estimand: Estimand) -> None:
    times = make(Made(gain=0.02))
    mirrored = replace(times, seconds=times.seconds[:, :, ::-1], device=times.device[:, :, ::-1])
    there, back = (estimate(one, profile(), estimand=estimand) for one in (times, mirrored))
    assert back.log_gain == pytest.approx(-there.log_gain)
    assert back.log_upper == pytest.approx(-there.log_lower)


def test_the_estimands_differ_as_they_should() -> None:
    times = make(Made(gain=0.02, heterogeneity=0.03, launch=0.001))
    noise = profile(0.001)
    population = estimate(times, noise)
    suite = estimate(times, noise, estimand="suite")
    throughput = estimate(times, noise, estimand="throughput")
    sampled = throughput_of_population(times, noise)
    assert suite.log_gain == population.log_gain
    assert suite.standard_error < population.standard_error / 2
    assert suite.variance_parts["request"] == 0
    assert throughput.log_gain != population.log_gain
    assert sampled.log_lower < throughput.log_lower < throughput.log_upper < sampled.log_upper


def test_no_variance_gives_the_point_and_no_nan() -> None:
    times = make(Made(noise=0, launch=0, gain=0.02))
    found = estimate(times, replace(profile(), pair_means=(0.0,) * 8))
    assert found.log_lower == pytest.approx(0.02)
    assert found.log_upper == pytest.approx(0.02)


@given(scale=st.floats(1e-12, 1e12))
def test_satterthwaite_has_no_unit(scale: float) -> None:
    first, second = np.array([1.0]), np.array([2.0])
    expected = 9 / (1 / 5 + 4 / 7)
    assert satterthwaite(scale * first, 5.0, scale * second, np.array([7.0]))[0] == pytest.approx(expected)


def test_what_cannot_be_estimated_is_refused() -> None:
    with pytest.raises(UsageError, match="LG1053"):
        estimate(make(Made(requests=1)), profile())
    assert estimate(make(Made(requests=1)), profile(), estimand="suite").num_requests == 1
    with pytest.raises(UsageError, match="LG1052"):
        estimate(make(Made()), replace(profile(), pair_throughputs=None), estimand="throughput")


def test_fieller_is_the_inverted_t_test() -> None:
    """At the bound the paired t statistic of stock - ratio x candidate is exactly the quantile."""
    rng = np.random.default_rng(4)
    candidate = np.exp(rng.normal(0, 0.6, 32))
    stock = 1.02 * candidate * np.exp(rng.normal(0, 0.01, 32))
    point, lower, upper = (float(value) for value in fieller_logs(stock, candidate))
    assert lower < point < upper
    for bound, sign in ((lower, 1.0), (upper, -1.0)):
        residual = stock - math.exp(bound) * candidate
        statistic = residual.mean() / (residual.std(ddof=1) / math.sqrt(32))
        assert statistic == pytest.approx(sign * stats.t.ppf(0.95, 31))


def test_fieller_is_unbounded_where_the_data_are() -> None:
    rng = np.random.default_rng(4)
    stock, candidate = rng.exponential(1.0, (2, 3))
    _, lower, upper = fieller_logs(stock, 1e-9 + candidate * np.array([0.0, 0.0, 1.0]))
    assert lower == -np.inf
    assert upper == np.inf


# Cells of the reference simulation's table 11 (n = 32, heavy noise of 1 %, device 2 %): coverage, mean distance in %.
CELLS = [
    ("largest", 4, 0.002, None, 0.0, 0.986, 0.37),
    ("pooled", 2, 0.002, None, 0.0, 0.983, 0.58),
    ("largest", 4, 0.005, None, 0.0, 0.977, 0.65),
    ("largest", 4, 0.002, None, 0.02, 0.961, 0.68),
    ("largest", 4, 0.002, 0.008, 0.0, 0.956, 0.67),
    ("pooled", 3, 0.002, 0.008, 0.0, 0.927, 0.81),
    ("profile", 4, 0.002, 0.008, 0.0, 0.843, 0.31),
]


@pytest.mark.parametrize(("rule", "pairs", "launch", "candidate", "spread", "coverage", "distance"), CELLS)
def test_the_reference_tables_come_out_again(  # noqa: PLR0913
    rule: LaunchRule,
    pairs: int,
    launch: float,
    candidate: float | None,
    spread: float,
    coverage: float,
    distance: float,
) -> None:
    number = 2_000
    scenario = Scenario(name="cell", launch_noise=launch, candidate_launch_noise=candidate, heterogeneity=spread)
    campaigns = simulate(np.random.default_rng(11), number, pairs, scenario)
    aa = log_ratios(campaigns.profile_seconds).mean(axis=-1)
    lower = estimate_arrays(log_ratios(campaigns.seconds), aa, launch_rule=rule).log_lower
    chance = math.sqrt(coverage * (1 - coverage) * (1 / number + 1 / 4_000))
    assert abs(float(np.mean(lower <= 0.01)) - coverage) < 4 * chance
    assert 100 * float(np.mean(0.01 - lower)) == pytest.approx(distance, rel=0.08)


def kept_campaign(rng: np.random.Generator, gain: float) -> tuple[PairTimes, NoiseProfile]:
    """Launches that last: one offset of 0.3 % for all pairs of the profile, another for all of the campaign."""
    shift, scatter = 0.003, 0.0004
    noise = NoiseProfile(
        pair_means=tuple((rng.normal(0, shift) + rng.normal(0, scatter, 8)).tolist()), keeps_launches=True
    )
    offset = rng.normal(0, shift) + rng.normal(0, scatter, (6, 1, 1, 1))
    seconds = np.exp(rng.normal(0, 0.0005, (6, 2, 2, 4)) - [[0.0], [gain]] - [[0.0], [1.0]] * offset)
    return with_seconds(seconds), noise


def test_launches_that_are_kept_widen_the_bounds_and_pairs_do_not_average_them_away() -> None:
    """Without that part the bound misses the truth in more than a quarter of campaigns."""
    rng, gain = np.random.default_rng(29), 0.03
    held = {False: 0, True: 0}
    for _ in range(400):
        times, noise = kept_campaign(rng, gain)
        for kept in held:
            held[kept] += estimate(times, replace(noise, keeps_launches=kept)).log_lower <= gain
    assert held[True] >= 0.93 * 400
    assert held[False] < 0.75 * 400


def test_a_profile_without_an_offset_leaves_the_bounds_alone() -> None:
    times, noise = make(Made(pairs=6, seed=2)), profile()
    balanced = replace(noise, pair_means=(0.001, -0.001) * 4)
    assert estimate(times, balanced) == estimate(times, replace(balanced, keeps_launches=True))
    shifted = replace(noise, pair_means=(0.0029, 0.0031) * 4)
    kept = estimate(times, replace(shifted, keeps_launches=True))
    assert kept.variance_parts["kept_launches"] == pytest.approx(0.003**2, rel=0.01)
    assert kept.log_lower < estimate(times, shifted).log_lower - 0.005
