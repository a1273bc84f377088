from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from statsmodels.stats.proportion import confint_proportions_2indep
from statsmodels.stats.proportion import test_proportions_2indep as score_test

from lossguard.checks.proportions import (
    binomial_lower,
    binomial_upper,
    conditional_test,
    counts,
    design_effect,
    exact_lower,
    exact_upper,
    score_lower,
    score_statistic,
    score_upper,
)

trials = st.integers(10, 5000)
share = st.floats(0, 1)


@given(trials, trials, share, share, st.floats(-0.6, 0.6))
def test_score_statistic_is_at_the_maximum_likelihood_under_the_null(
    n1: int, n2: int, share1: float, share2: float, delta: float
) -> None:
    x1, x2 = round(share1 * n1), round(share2 * n2)
    low, high = max(0.0, -delta), min(1.0, 1.0 - delta)
    assume(high - low > 1e-3)

    def minus_log_likelihood(p: float) -> float:
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = [x1 * np.log(p + delta), (n1 - x1) * np.log1p(-p - delta), x2 * np.log(p), (n2 - x2) * np.log1p(-p)]
        return -float(sum(np.nan_to_num(term, nan=0.0, neginf=-1e9) for term in terms))

    best = optimize.minimize_scalar(
        minus_log_likelihood, bounds=(low + 1e-12, high - 1e-12), method="bounded", options={"xatol": 1e-13}
    )
    null2, null1 = best.x, best.x + delta
    variance = (null1 * (1 - null1) / n1 + null2 * (1 - null2) / n2) * (n1 + n2) / (n1 + n2 - 1)
    assume(variance > 1e-7)
    expected = (x1 / n1 - x2 / n2 - delta) / np.sqrt(variance)
    assert float(score_statistic(counts(x1, n1, x2, n2), delta)) == pytest.approx(expected, rel=2e-3, abs=2e-3)


@given(trials, trials, share, share)
def test_score_statistic_without_difference_is_statsmodels(n1: int, n2: int, share1: float, share2: float) -> None:
    x1, x2 = round(share1 * n1), round(share2 * n2)
    assume(0 < x1 + x2 < n1 + n2)
    expected = score_test(x1, n1, x2, n2, value=0, method="score", compare="diff", correction=True).statistic
    assert float(score_statistic(counts(x1, n1, x2, n2), 0.0)) == pytest.approx(expected, rel=1e-8, abs=1e-9)


# statsmodels 0.15 writes the second count where the cubic has the second arm's trials: at low rates, where the check
# works, the two stay close (its interval raises ValueError at some counts, hence fixed ones below)
@settings(max_examples=40)
@given(st.integers(2000, 20000), st.integers(2000, 20000), st.floats(0.002, 0.012), st.floats(0.002, 0.012))
def test_score_test_and_interval_are_close_to_statsmodels_at_low_rates(
    n1: int, n2: int, share1: float, share2: float
) -> None:
    x1, x2 = round(share1 * n1), round(share2 * n2)
    expected = score_test(x1, n1, x2, n2, value=0.005, method="score", compare="diff", correction=True).statistic
    assert float(score_statistic(counts(x1, n1, x2, n2), 0.005)) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("x1", "n1", "x2", "n2"), [(30, 4000, 26, 5000), (26, 13200, 26, 13200), (90, 13200, 80, 13000), (0, 5000, 9, 5000)]
)
def test_score_interval_is_close_to_statsmodels_at_low_rates(x1: int, n1: int, x2: int, n2: int) -> None:
    low, high = confint_proportions_2indep(x1, n1, x2, n2, method="score", compare="diff", alpha=0.1, correction=True)
    given_counts = counts(x1, n1, x2, n2)
    assert float(score_upper(given_counts, 0.05)) == pytest.approx(high, abs=1e-4)
    assert float(score_lower(given_counts, 0.05)) == pytest.approx(low, abs=1e-4)


@given(trials, trials, share, share, st.sampled_from([0.05, 0.01, 0.005]))
def test_score_bounds_invert_the_score_test(n1: int, n2: int, share1: float, share2: float, alpha: float) -> None:
    given_counts = counts(round(share1 * n1), n1, round(share2 * n2), n2)
    upper = float(score_upper(given_counts, alpha))
    if upper < 1 - 1e-9:
        assert float(score_statistic(given_counts, upper)) == pytest.approx(stats.norm.ppf(alpha), abs=1e-4)
    assert float(score_lower(given_counts, alpha)) <= upper


@given(st.integers(0, 400), st.integers(1, 400), st.sampled_from([0.05, 0.01]))
def test_binomial_bounds_are_clopper_pearson(x: int, n: int, alpha: float) -> None:
    assume(x <= n)
    interval = stats.binomtest(x, n).proportion_ci(1 - 2 * alpha, method="exact")
    assert float(binomial_lower(x, n, alpha)) == pytest.approx(interval.low, abs=1e-9)
    assert float(binomial_upper(x, n, alpha)) == pytest.approx(interval.high, abs=1e-9)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(50, 500), st.integers(50, 500))
def test_conditional_test_is_scipys_binomial_test(x1: int, x2: int, n1: int, n2: int) -> None:
    assume(x1 + x2 > 0)
    expected = stats.binomtest(x1, x1 + x2, n1 / (n1 + n2), alternative="greater").pvalue
    assert float(conditional_test(counts(x1, n1, x2, n2))) == pytest.approx(expected, rel=1e-7)


@given(st.integers(0, 30), st.integers(0, 30), st.sampled_from([0.05, 0.01]))
def test_exact_bounds_hold_the_estimate_and_mirror(x1: int, x2: int, alpha: float) -> None:
    given_counts = counts(x1, 1000, x2, 1200)
    estimate = x1 / 1000 - x2 / 1200
    assert float(exact_lower(given_counts, alpha)) <= estimate <= float(exact_upper(given_counts, alpha))
    assert float(exact_upper(given_counts, alpha)) == -float(exact_lower(given_counts.swapped(), alpha))


def test_zero_in_both_arms_is_the_rule_of_three() -> None:
    assert float(exact_upper(counts(0, 10_000, 0, 10_000), 0.05)) == pytest.approx(3e-4, rel=2e-3)


@pytest.mark.parametrize("alpha", [0.05, 0.01])
@pytest.mark.parametrize("stock_mean", [0.0, 0.5, 2.0, 8.0])
@pytest.mark.parametrize("excess", [0.0, 2.0, 13.0])
def test_exact_bounds_cover_by_enumeration(alpha: float, stock_mean: float, excess: float) -> None:
    grid = np.arange(80)
    first, second = np.meshgrid(grid, grid, indexing="ij")
    given_counts = counts(first, np.full(first.shape, 1e4), second, np.full(first.shape, 1e4))
    chance = np.outer(stats.poisson.pmf(grid, stock_mean + excess), stats.poisson.pmf(grid, stock_mean))
    truth = excess / 1e4
    assert float(chance[exact_upper(given_counts, alpha) < truth - 1e-15].sum()) <= alpha
    assert float(chance[exact_lower(given_counts, alpha) > truth + 1e-15].sum()) <= alpha


def test_design_effect_of_single_trials_is_near_one_and_of_whole_clusters_their_size() -> None:
    generator = np.random.default_rng(0)
    independent = generator.binomial(50, 0.1, size=4000).astype(np.float64)
    assert float(design_effect(independent, np.full(4000, 50.0))) == pytest.approx(1.0, abs=0.1)
    whole = (50 * generator.binomial(1, 0.1, size=4000)).astype(np.float64)
    assert float(design_effect(whole, np.full(4000, 50.0))) == pytest.approx(50.0, rel=0.05)
    assert float(design_effect(np.zeros(10), np.full(10, 5.0))) == 1.0
