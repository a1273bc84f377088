from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st

from lossguard.checks.base import FloatArray
from lossguard.checks.bootstrap_t import bootstrap_t, cluster_weights, difference_of_ratios
from lossguard.checks.bounds import Comparison, bounds_of, paired_bounds
from lossguard.checks.clusters import PairedSums


def random_sums(seed: int, num_comparisons: int, num_clusters: int, rate: float = 0.02) -> PairedSums:
    generator = np.random.default_rng(seed)
    size = (num_comparisons, num_clusters)
    tokens = [generator.integers(5, 200, size=size) for _ in range(2)]
    hits = [generator.binomial(number, rate) for number in tokens]
    arrays = [array.astype(np.float64) for array in (hits[0], tokens[0], hits[1], tokens[1])]
    return PairedSums(candidate=arrays[0], candidate_tokens=arrays[1], stock=arrays[2], stock_tokens=arrays[3])


def naive_studentised(sums: PairedSums, weights: FloatArray) -> FloatArray:
    """Cluster by cluster, straight from the definition."""
    rows = []
    for weight in weights:
        drawn = np.repeat(np.arange(len(weight)), weight.astype(int))
        again = difference_of_ratios(
            PairedSums(
                candidate=sums.candidate[drawn],
                candidate_tokens=sums.candidate_tokens[drawn],
                stock=sums.stock[drawn],
                stock_tokens=sums.stock_tokens[drawn],
            )
        )
        original = difference_of_ratios(sums)
        rows.append(float((again.estimate - original.estimate)[0] / again.standard_error[0]))
    return np.sort(np.array(rows))


@pytest.mark.parametrize("scale", [1.0, 0.013])
def test_closed_forms_equal_the_definition_for_counts_and_values(scale: float) -> None:
    sums = random_sums(3, 1, 40, rate=0.05)
    one = PairedSums(
        candidate=sums.candidate[0] * scale,
        candidate_tokens=sums.candidate_tokens[0],
        stock=sums.stock[0] * scale,
        stock_tokens=sums.stock_tokens[0],
    )
    weights = cluster_weights(40, 50, 1)
    assert bootstrap_t(one, weights).studentised[:, 0] == pytest.approx(naive_studentised(one, weights), rel=1e-9)


def test_many_comparisons_equal_one_by_one() -> None:
    many, weights = random_sums(5, 70, 30), cluster_weights(30, 200, 2)
    together = bootstrap_t(many, weights)
    for index in (0, 31, 32, 69):
        single = PairedSums(
            candidate=many.candidate[index],
            candidate_tokens=many.candidate_tokens[index],
            stock=many.stock[index],
            stock_tokens=many.stock_tokens[index],
        )
        alone = bootstrap_t(single, weights)
        assert together.upper(0.05)[index] == pytest.approx(alone.upper(0.05)[0], rel=1e-9)
        assert together.lower(0.01)[index] == pytest.approx(alone.lower(0.01)[0], rel=1e-9)


def test_standard_error_is_that_of_weighted_least_squares_by_cluster() -> None:
    sums = random_sums(7, 1, 60, rate=0.05)
    rates = np.concatenate([(sums.candidate / sums.candidate_tokens)[0], (sums.stock / sums.stock_tokens)[0]])
    tokens = np.concatenate([sums.candidate_tokens[0], sums.stock_tokens[0]])
    design = np.stack([np.ones(120), np.repeat([1.0, 0.0], 60)], axis=1)
    groups = {"groups": np.tile(np.arange(60), 2)}
    fit = sm.WLS(rates, design, weights=tokens).fit(cov_type="cluster", cov_kwds=groups)
    ours = difference_of_ratios(sums)
    assert ours.estimate[0] == pytest.approx(fit.params[1], rel=1e-10)
    # statsmodels adds (N - 1) / (N - k) for 120 rows and 2 columns
    assert ours.standard_error[0] == pytest.approx(fit.bse[1] / np.sqrt(119 / 118), rel=1e-10)


@given(st.integers(0, 10_000), st.integers(2, 40), st.sampled_from([0.0, 0.001, 0.01, 0.3, 1.0]))
def test_bounds_are_ordered_and_never_nan(seed: int, num_clusters: int, rate: float) -> None:
    sums = random_sums(seed, 3, num_clusters, rate)
    bounds = paired_bounds(Comparison(sums=sums, hits=sums), cluster_weights(num_clusters, 200, seed))
    for alpha in (0.05, 0.01):
        lower, upper = bounds.lower(alpha), bounds.upper(alpha)
        assert not np.isnan(lower).any()
        assert not np.isnan(upper).any()
        assert (lower <= bounds.estimate + 1e-12).all()
        assert (upper >= bounds.estimate - 1e-12).all()


@settings(max_examples=15)
@given(st.integers(0, 1000))
def test_exchanging_the_arms_negates_the_bounds(seed: int) -> None:
    sums = random_sums(seed, 1, 50)
    forward, back = (bounds_of(Comparison(sums=side, hits=side), 4) for side in (sums, sums.swapped()))
    assert forward.upper(0.05)[0] == pytest.approx(-back.lower(0.05)[0], rel=1e-6, abs=1e-9)


def constant(hits: float, stock_hits: float, num_clusters: int = 240) -> PairedSums:
    tokens = np.full(num_clusters, 55.0)
    return PairedSums(
        candidate=np.full(num_clusters, hits),
        candidate_tokens=tokens,
        stock=np.full(num_clusters, stock_hits),
        stock_tokens=tokens,
    )


def test_no_mismatch_in_either_arm_gives_the_rule_of_three_and_not_zero() -> None:
    sums = constant(0.0, 0.0)
    bounds = bounds_of(Comparison(sums=sums, hits=sums), 1)
    assert bounds.upper(0.05)[0] == pytest.approx(3.0 / (240 * 55), rel=1e-2)
    assert bounds.lower(0.05)[0] == pytest.approx(-3.0 / (240 * 55), rel=1e-2)


def test_no_mismatch_in_stock_leaves_room_for_stocks_own_rate() -> None:
    sums = constant(0.0, 0.0)
    candidate = sums.candidate.copy()
    candidate[:12] = 1.0
    one_arm = PairedSums(
        candidate=candidate, candidate_tokens=sums.candidate_tokens, stock=sums.stock, stock_tokens=sums.stock_tokens
    )
    bounds = bounds_of(Comparison(sums=one_arm, hits=one_arm), 1)
    assert 0 < bounds.lower(0.01)[0] < 5.0 / (240 * 55)  # 12 seen; under the 1 % bound of 12 alone
    assert bounds.upper(0.05)[0] > 19.0 / (240 * 55)


def test_values_with_no_hit_are_bounded_by_their_largest_value() -> None:
    sums = constant(0.0, 0.0)
    bounds = bounds_of(Comparison(sums=sums, hits=sums, largest_value=0.0625), 1)
    assert bounds.upper(0.05)[0] == pytest.approx(0.0625 * 3.0 / (240 * 55), rel=1e-2)


def test_without_spread_a_shift_is_not_taken_as_known() -> None:
    sums = constant(1.0, 0.0)
    bounds = bounds_of(Comparison(sums=sums, hits=sums), 1)
    assert bounds.upper(0.05)[0] > 1 / 55
    assert bounds.lower(0.05)[0] < 1 / 55


def test_few_clusters_count_as_one_observation_each() -> None:
    sums = PairedSums(
        candidate=np.array([9.0, 8.0, 7.0]),
        candidate_tokens=np.full(3, 100.0),
        stock=np.zeros(3),
        stock_tokens=np.full(3, 100.0),
    )
    assert bounds_of(Comparison(sums=sums, hits=sums), 1).lower(0.01)[0] <= 0


def test_an_arm_without_tokens_leaves_everything_open() -> None:
    sums = PairedSums(
        candidate=np.zeros(20), candidate_tokens=np.zeros(20), stock=np.zeros(20), stock_tokens=np.full(20, 5.0)
    )
    bounds = bounds_of(Comparison(sums=sums, hits=sums), 1)
    assert bounds.upper(0.05)[0] == np.inf
    assert bounds.lower(0.05)[0] == -np.inf
