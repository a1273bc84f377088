"""The interval by request covers the true tokens per step about as often as it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard_mechanisms.replay.estimates import number_clusters, ratio_of_sums

NUM_RUNS = 2000


def simulate(generator: np.random.Generator, num_requests: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and steps of requests that differ in how predictable they are, and in length."""
    steps = generator.integers(5, 40, num_requests)
    rates = generator.beta(4, 3, num_requests)  # a request's own acceptance
    tokens = np.array(
        [(1 + generator.binomial(3, rate, count)).sum() for rate, count in zip(rates, steps, strict=True)]
    )
    return tokens, steps


@pytest.mark.parametrize("num_requests", [12, 40])
def test_the_interval_covers_the_true_ratio_as_often_as_it_says(num_requests: int) -> None:
    generator = np.random.default_rng(11)
    truth = 1 + 3 * 4 / 7  # lengths do not depend on rates
    covered = 0
    for _ in range(NUM_RUNS):
        tokens, steps = simulate(generator, num_requests)
        estimate = ratio_of_sums(tokens, steps, np.arange(num_requests))
        assert estimate.low is not None
        assert estimate.high is not None
        covered += estimate.low <= truth <= estimate.high
    assert 0.93 <= covered / NUM_RUNS <= 0.97


def test_steps_as_the_unit_would_cover_far_too_seldom() -> None:
    """Why requests are the unit: the same simulation with an interval that takes every step for a draw of its own."""
    generator = np.random.default_rng(12)
    covered = 0
    for _ in range(NUM_RUNS // 4):
        tokens, steps = simulate(generator, 40)
        value = tokens.sum() / steps.sum()
        rate = (value - 1) / 3
        half_width = 1.96 * np.sqrt(3 * rate * (1 - rate) / steps.sum())
        covered += abs(value - (1 + 12 / 7)) <= half_width
    assert covered / (NUM_RUNS // 4) < 0.7


def test_repeats_of_a_prompt_are_one_cluster() -> None:
    tokens, steps = np.array([20, 20, 50, 50]), np.array([10, 10, 10, 10])
    apart = ratio_of_sums(tokens, steps, np.arange(4))
    together = ratio_of_sums(tokens, steps, number_clusters(("a", "a", "b", "b")))
    assert together.value == apart.value == 3.5
    assert (together.num_clusters, apart.num_clusters) == (2, 4)
    assert together.half_width is not None
    assert apart.half_width is not None
    assert together.half_width > 4 * apart.half_width  # t with 1 degree of freedom, and fewer clusters


def test_the_formula_by_hand() -> None:
    """tau = 9 / 4; residuals 3 - 2.25 and 6 - 3 * 2.25; t(1) at 97.5 % is 12.7062."""
    estimate = ratio_of_sums(np.array([3, 6]), np.array([1, 3]), np.arange(2))
    assert estimate.value == 2.25
    assert estimate.half_width == pytest.approx(12.7062047 * np.sqrt(2 * (0.75**2 + 0.75**2)) / 4)
    assert (estimate.numerator, estimate.denominator) == (9, 4)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=12), st.integers(2, 5))
def test_the_order_and_the_scale_of_clusters_do_not_matter(pairs: list[tuple[int, int]], factor: int) -> None:
    tokens, steps = np.array(pairs).T
    clusters = np.arange(len(pairs))
    estimate = ratio_of_sums(tokens, steps, clusters)
    backwards = ratio_of_sums(tokens[::-1], steps[::-1], clusters)
    larger = ratio_of_sums(factor * tokens, factor * steps, clusters)
    for other in (backwards, larger):
        assert other.value == pytest.approx(estimate.value) if estimate.value is not None else other.value is None
        assert (other.half_width is None) is (estimate.half_width is None)
        if estimate.half_width is not None:
            assert other.half_width == pytest.approx(estimate.half_width, abs=1e-9)


def test_too_little_gives_no_interval() -> None:
    assert ratio_of_sums(np.array([4]), np.array([2]), np.arange(1)).half_width is None
    nothing = ratio_of_sums(np.array([0, 0]), np.array([0, 0]), np.arange(2))
    assert (nothing.value, nothing.low, nothing.high, nothing.num_clusters) == (None, None, None, 0)
    one_of_two = ratio_of_sums(np.array([4, 0]), np.array([2, 0]), np.arange(2))
    assert (one_of_two.value, one_of_two.num_clusters) == (2.0, 1)
