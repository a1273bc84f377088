"""Arithmetic that no other test noticed being changed (docs/mutation.md): few hits, no tokens, no spread."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from lossguard.checks.base import FloatArray
from lossguard.checks.bootstrap_t import bootstrap_t, cluster_weights
from lossguard.checks.bounds import Bounds, Comparison, effective_counts, paired_bounds
from lossguard.checks.bucket_tests import (
    Standardised,
    rate_excess,
    rate_p_values,
    standardised_excess,
    standardised_p_value,
)
from lossguard.checks.clusters import PairedSums
from lossguard.checks.proportions import (
    binomial_upper,
    counts,
    exact_lower,
    exact_upper,
    score_statistic,
    score_upper,
)
from lossguard.checks.symmetry import TieCounts, sign_flips, symmetry_test

NUM_CLUSTERS = 20
ALPHA = 0.05


def sums(candidate: list[float], stock: list[float], tokens: float = 100.0) -> PairedSums:
    """Values of the first clusters of each arm, the others 0; equal tokens."""
    arms = [np.array(values + [0.0] * (NUM_CLUSTERS - len(values))) for values in (candidate, stock)]
    size = np.full(NUM_CLUSTERS, tokens)
    return PairedSums(candidate=arms[0], candidate_tokens=size, stock=arms[1], stock_tokens=size)


def lower_of(x: float, n: float, alpha: float) -> float:
    """Clopper-Pearson by scipy's quantiles."""
    return float(stats.beta.ppf(alpha, x, n - x + 1))


def upper_of(x: float, n: float, alpha: float) -> float:
    """Clopper-Pearson by scipy's quantiles."""
    return float(stats.beta.ppf(1 - alpha, x + 1, n - x))


@pytest.mark.parametrize(("x1", "n1", "x2", "n2"), [(1, 1000, 2, 3000), (3, 1000, 5, 2000), (20, 1000, 2, 2000)])
def test_exact_lower_bound_spends_half_its_level_on_each_arm(x1: int, n1: int, x2: int, n2: int) -> None:
    low = lower_of(x1, n1, ALPHA / 2)
    box = low - upper_of(x2, n2, ALPHA / 2)
    share = lower_of(x1, x1 + x2, ALPHA / 2)
    ratio = share / (1 - share) * n2 / n1
    wanted = max(low * (1 - 1 / ratio), box) if ratio > 1 else box
    assert exact_lower(counts(x1, n1, x2, n2), ALPHA) == pytest.approx(wanted, rel=1e-9)


def test_score_statistic_without_variance_is_zero_or_infinite() -> None:
    assert score_statistic(counts(0, 10, 0, 10), 0.0) == 0
    assert score_statistic(counts(10, 10, 0, 10), 1.0) == 0
    assert score_statistic(counts(5, 10, 0, 10), 1.0) == -math.inf


def comparison_bounds(given: PairedSums, largest_value: float | None) -> Bounds:
    """Bounds of counts, or of values whose hits are the clusters that are not 0."""
    hits = PairedSums(
        candidate=(given.candidate > 0).astype(np.float64),
        candidate_tokens=given.candidate_tokens,
        stock=(given.stock > 0).astype(np.float64),
        stock_tokens=given.stock_tokens,
    )
    own = given if largest_value is None else hits
    return paired_bounds(
        Comparison(sums=given, hits=own, largest_value=largest_value), cluster_weights(NUM_CLUSTERS, 2000, 3)
    )


@pytest.mark.parametrize(
    ("candidate", "stock"), [([1, 1, 1], []), ([], [1, 1, 1]), ([1], [1]), ([], []), ([1] * 9, [])]
)
def test_where_an_arm_has_no_hit_no_bound_lies_inside_the_exact_one(candidate: list[float], stock: list[float]) -> None:
    bounds = comparison_bounds(sums(candidate, stock), None)
    assert bounds.upper(ALPHA)[0] == pytest.approx(counted(bounds, candidate, stock), rel=1e-9)
    mirrored = comparison_bounds(sums(stock, candidate), None)
    assert mirrored.lower(ALPHA)[0] == pytest.approx(-bounds.upper(ALPHA)[0], rel=1e-9)


def counted(bounds: Bounds, candidate: list[float], stock: list[float]) -> float:
    """The larger of both bounds from counts where an arm has none, else the score bound."""
    score = float(score_upper(bounds.effective, ALPHA)[0])
    exact = float(exact_upper(bounds.effective, ALPHA)[0])
    return score if candidate and stock else max(score, exact)


def test_values_of_few_hits_in_both_arms_are_the_estimate_and_all_that_may_hide() -> None:
    bounds = comparison_bounds(sums([0.05, 0.02], [0.03, 0.01, 0.02]), 0.0625)
    mean, stock_mean = 0.07 / 2000, 0.06 / 2000
    hidden = 0.0625 * float(binomial_upper(2, 2000, ALPHA)) - mean + stock_mean
    assert bounds.upper(ALPHA)[0] == pytest.approx(mean - stock_mean + hidden, rel=1e-9)
    hidden = 0.0625 * float(binomial_upper(3, 2000, ALPHA)) - stock_mean + mean
    assert bounds.lower(ALPHA)[0] == pytest.approx(mean - stock_mean - hidden, rel=1e-9)


def test_values_of_few_hits_in_one_arm_widen_the_bootstrap_by_that_arm_alone() -> None:
    generator = np.random.default_rng(1)
    many = generator.uniform(0.01, 0.05, size=16).tolist()
    few = comparison_bounds(sums([0.05, 0.02], many), 0.0625)
    hidden = 0.0625 * float(binomial_upper(few.effective.first, few.effective.first_trials, ALPHA)[0]) - 0.07 / 2000
    assert few.upper(ALPHA)[0] == pytest.approx(few.bootstrap.upper(ALPHA)[0] + hidden, rel=1e-9)
    assert few.lower(ALPHA)[0] == pytest.approx(few.bootstrap.lower(ALPHA)[0] - 0.07 / 2000, rel=1e-9)
    mirrored = comparison_bounds(sums(many, [0.05, 0.02]), 0.0625)
    assert mirrored.lower(ALPHA)[0] == pytest.approx(mirrored.bootstrap.lower(ALPHA)[0] - hidden, rel=1e-9)


def test_under_ten_clusters_each_is_one_trial() -> None:
    size = np.full(4, 100.0)
    few = PairedSums(candidate=np.ones(4), candidate_tokens=size, stock=np.zeros(4), stock_tokens=size)
    found = effective_counts(few.as_many())
    assert [float(found.first[0]), float(found.first_trials[0])] == pytest.approx([0.04, 4.0])


def plain(candidate: FloatArray, stock: FloatArray, candidate_tokens: FloatArray | None = None) -> PairedSums:
    """Ten tokens a cluster unless told otherwise."""
    size = np.full(len(candidate), 10.0)
    tokens = size if candidate_tokens is None else candidate_tokens
    return PairedSums(candidate=candidate, candidate_tokens=tokens, stock=stock, stock_tokens=size)


def test_resamples_without_tokens_of_an_arm_widen_both_bounds() -> None:
    given = plain(np.array([1.0, 0.0, 0.0]), np.array([1.0, 0.0, 2.0]), np.array([10.0, 0.0, 0.0]))
    found = bootstrap_t(given, cluster_weights(3, 1000, 5))
    share = float(np.isinf(found.studentised).mean())
    assert share == pytest.approx((2 / 3) ** 3, abs=0.05)
    assert np.isposinf(found.studentised).mean() == pytest.approx(share / 2, abs=0.03)
    assert not np.isnan(found.studentised).any()
    assert (found.upper(0.12)[0], found.lower(0.12)[0]) == (math.inf, -math.inf)


def test_resamples_without_spread_are_infinite_with_the_sign_of_their_shift() -> None:
    given = plain(np.array([4.0, 1.0, 2.0]), np.array([1.0, 3.0, 3.0]))
    weights = np.array([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [1.0, 1.0, 1.0]])
    assert bootstrap_t(given, weights).studentised[:, 0].tolist() == [-math.inf, pytest.approx(0.0), math.inf]


def test_clusters_that_are_all_alike_leave_the_estimate() -> None:
    found = bootstrap_t(plain(np.full(3, 2.0), np.full(3, 1.0)), cluster_weights(3, 50, 5))
    assert found.studentised[:, 0].tolist() == [0.0] * 50


def test_a_bucket_without_tokens_of_stock_proves_nothing() -> None:
    generator = np.random.default_rng(2)
    hits = generator.binomial(50, 0.1, size=(2, NUM_CLUSTERS)).astype(np.float64)
    tokens = np.full((2, NUM_CLUSTERS), 50.0)
    stock_tokens = np.stack([tokens[0], np.zeros(NUM_CLUSTERS)])
    stock = np.stack([hits[1] / 2, np.zeros(NUM_CLUSTERS)])
    both = PairedSums(candidate=hits, candidate_tokens=tokens, stock=stock, stock_tokens=stock_tokens)
    alone = PairedSums(candidate=hits[0], candidate_tokens=tokens[0], stock=stock[0], stock_tokens=tokens[0])
    assert rate_p_values(both).tolist() == [pytest.approx(float(rate_p_values(alone)[0])), 1.0]
    assert rate_excess(both).tolist() == [pytest.approx(float(rate_excess(alone)[0])), 0.0]
    assert rate_p_values(both.swapped())[1] == 1.0


def standardised(num_bins: int) -> Standardised:
    """Thirty clusters: bin 0 has much of stock, bin 1 one token of stock, bin 2 none."""
    generator = np.random.default_rng(3)
    tokens = np.full((30, num_bins), 5.0)
    stock_tokens = np.zeros((30, num_bins))
    stock_tokens[:, 0], stock_tokens[0, 1] = 40.0, 1.0
    stock = np.zeros((30, num_bins))
    stock[0, 0] = 1.0
    return Standardised(
        mismatches=generator.binomial(5, 0.2, size=(30, 3)).astype(np.float64)[:, :num_bins],
        tokens=tokens,
        stock_mismatches=stock,
        stock_tokens=stock_tokens,
    )


def test_difficulties_that_stock_never_met_are_left_out() -> None:
    given = standardised(3)
    assert standardised_excess(given) == pytest.approx(standardised_excess(standardised(2)), rel=1e-9)
    assert standardised_p_value(given) == pytest.approx(standardised_p_value(standardised(2)), rel=1e-9)
    hits = given.mismatches[:, :2].sum()
    assert standardised_excess(given) == pytest.approx((hits - 150 / 1200) / 300, rel=1e-9)


def test_a_standardised_p_value_is_the_larger_of_its_t_and_poisson_tails() -> None:
    given = standardised(2)
    rate = np.array([1 / 1200, 0.0])
    weight = np.array([150 / 1200, 150.0])
    own = (given.mismatches - rate * given.tokens).sum(axis=1)
    influence = own - (weight * (given.stock_mismatches - rate * given.stock_tokens)).sum(axis=1)
    variance = 30 * float(np.var(influence, ddof=1))
    observed, expected = float(given.mismatches.sum()), 150 / 1200
    effect = max(variance / expected, 1.0)
    tails = (
        stats.t.sf((observed - expected) / math.sqrt(variance), 29),
        stats.gamma.cdf((expected + 0.5) / effect, observed / effect),
    )
    assert standardised_p_value(given) == pytest.approx(max(tails), rel=1e-9)


def test_a_bucket_whose_clusters_are_all_alike_proves_nothing() -> None:
    flat = np.ones((5, 1))
    given = Standardised(mismatches=flat, tokens=4 * flat, stock_mismatches=0 * flat, stock_tokens=4 * flat)
    assert standardised_p_value(given) == 1.0


def test_a_standardised_variance_under_one_is_one_too() -> None:
    def column(*values: float) -> FloatArray:
        return np.array(values)[:, None]

    two, four = column(2, 2, 2, 2), column(4, 4, 4, 4)
    given = Standardised(
        mismatches=column(1, 1, 1, 0), tokens=two, stock_mismatches=column(1, 1, 0, 0), stock_tokens=four
    )
    assert standardised_p_value(given) < 0.5


def test_bins_without_ties_change_nothing_and_no_tie_at_all_is_symmetric() -> None:
    generator = np.random.default_rng(4)
    ties = generator.integers(1, 9, size=(2, 30, 3)).astype(np.float64)
    lower = np.floor(ties * generator.random(ties.shape))

    def tables(width: int) -> TieCounts:
        none = np.zeros((30, width - 3))
        columns = [np.concatenate([table, none], axis=1) for table in (lower[0], ties[0], lower[1], ties[1])]
        return TieCounts(
            candidate_lower=columns[0], candidate_ties=columns[1], stock_lower=columns[2], stock_ties=columns[3]
        )

    flips = sign_flips(30, 5, 500)
    with_empty_bin, without = symmetry_test(tables(4), flips), symmetry_test(tables(3), flips)
    assert with_empty_bin.p_value.tolist() == without.p_value.tolist()
    zero = np.zeros((30, 4))
    nothing = symmetry_test(
        TieCounts(candidate_lower=zero, candidate_ties=zero, stock_lower=zero, stock_ties=zero), flips
    )
    assert (nothing.p_value.tolist(), nothing.candidate_share.tolist(), nothing.stock_share.tolist()) == ([1], [0], [0])


@pytest.mark.parametrize(("num_clusters", "largest_value"), [(4, None), (20, None), (20, 2.0)])
def test_comparisons_of_few_hits_made_together_are_those_made_alone(
    num_clusters: int, largest_value: float | None
) -> None:
    generator = np.random.default_rng(6)
    rates, sizes = np.array([[0.02], [0.3]]), np.array([[20.0], [60.0]])
    tokens = [np.asarray(sizes * generator.integers(1, 4, size=(2, num_clusters)), dtype=np.float64) for _ in range(2)]
    hits = [generator.binomial(1, rates, size=(2, num_clusters)).astype(np.float64) for _ in range(2)]
    weights = cluster_weights(num_clusters, 500, 5)

    def bounds(rows: slice) -> list[float]:
        given = PairedSums(
            candidate=hits[0][rows], candidate_tokens=tokens[0][rows], stock=hits[1][rows], stock_tokens=tokens[1][rows]
        )
        found = paired_bounds(Comparison(sums=given, hits=given, largest_value=largest_value), weights)
        return [*found.upper(ALPHA).tolist(), *found.lower(ALPHA).tolist()]

    together, first, second = bounds(slice(None)), bounds(slice(0, 1)), bounds(slice(1, 2))
    assert together == pytest.approx([first[0], second[0], first[1], second[1]], rel=1e-12)


def test_symmetry_of_several_runs_at_once_is_that_of_each() -> None:
    generator = np.random.default_rng(7)
    ties = generator.integers(1, 9, size=(2, 2, 30, 4)).astype(np.float64)
    lower = np.floor(ties * generator.random(ties.shape))
    both = TieCounts(candidate_lower=lower[0], candidate_ties=ties[0], stock_lower=lower[1], stock_ties=ties[1])
    alone = TieCounts(
        candidate_lower=lower[0, 1], candidate_ties=ties[0, 1], stock_lower=lower[1, 1], stock_ties=ties[1, 1]
    )
    flips = sign_flips(30, 5, 500)
    of_both, of_one = symmetry_test(both, flips), symmetry_test(alone, flips)
    assert of_both.p_value[1] == of_one.p_value[0]
    assert of_both.candidate_share[1] == pytest.approx(float(of_one.candidate_share[0]), rel=1e-12)
    assert of_both.stock_share[1] == pytest.approx(float(of_one.stock_share[0]), rel=1e-12)
