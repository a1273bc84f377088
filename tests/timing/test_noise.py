"""Which bound of the noise enters where, with its factor."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from lossguard.timing.base import NoiseProfile
from lossguard.timing.noise import (
    describe_noise,
    noise_profile,
    profile_problem,
    sequential_noise,
    threshold_noise,
    upper_factor,
)
from tests.timing.campaigns import Made, make, profile


@pytest.mark.parametrize(("pairs", "confidence", "factor"), [(8, 0.95, 1.711), (8, 0.75, 1.256), (40, 0.75, 1.090)])
def test_factors_are_those_of_the_chi_square(pairs: int, confidence: float, factor: float) -> None:
    assert upper_factor(pairs, confidence) == pytest.approx(math.sqrt(pairs / stats.chi2.ppf(1 - confidence, pairs)))
    assert upper_factor(pairs, confidence) == pytest.approx(factor, abs=5e-4)


def test_an_upper_bound_covers_as_often_as_it_says() -> None:
    means = np.random.default_rng(1).normal(0, 1, (20_000, 8))
    rms = np.sqrt((means**2).mean(axis=1))
    assert float(np.mean(rms * upper_factor(8, 0.95) > 1)) == pytest.approx(0.95, abs=0.007)
    assert float(np.mean(rms * upper_factor(8, 0.75) > 1)) == pytest.approx(0.75, abs=0.013)


def test_the_threshold_takes_the_upper_bound_only_of_a_short_profile() -> None:
    short, long = threshold_noise(profile(pairs=19)), threshold_noise(profile(pairs=20))
    assert short.factor > 1.3
    assert "19 A/A pairs" in short.reason
    assert long.factor == 1
    assert long.value == long.rms == profile(pairs=20).rms


def test_the_boundary_takes_the_75_percent_bound_of_any_profile() -> None:
    for pairs in (8, 40):
        found = sequential_noise(profile(pairs=pairs))
        assert found.value == pytest.approx(profile(pairs=pairs).rms * upper_factor(pairs, 0.75))
        assert "75 %" in found.reason


def test_a_profile_is_read_from_an_a_a_campaign() -> None:
    times = make(Made(pairs=200, launch=0.002, noise=0.01, period=0.01))
    found = noise_profile(times)
    assert found.num_pairs == len(found.stock_levels) == 200
    # A pair's mean: launches 0.002 (two arms, two runs, halved) and requests 0.01 / sqrt(32).
    assert found.rms == pytest.approx(math.hypot(0.002, 0.01 / math.sqrt(32)), rel=0.15)
    assert found.request_sd == pytest.approx(0.01, rel=0.05)
    assert found.pair_throughputs is not None
    assert found.pair_throughputs != found.pair_means


def test_levels_follow_stock_and_not_the_other_arm() -> None:
    slow = make(Made(pairs=2, noise=0, launch=0, gain=-0.5))
    assert noise_profile(slow).stock_levels == pytest.approx(
        noise_profile(make(Made(pairs=2, noise=0, launch=0))).stock_levels
    )


@pytest.mark.parametrize(
    ("noise", "part"),
    [
        (None, "record stock against stock"),
        (NoiseProfile(pair_means=()), "record stock against stock"),
        (profile(pairs=7), "7 swap pairs; it takes 8"),
        (replace(profile(), pair_means=(0.0,) * 8), "no noise at all"),
        (replace(profile(), pair_means=(math.nan,) * 8), "no numbers"),
    ],
)
def test_unfit_profiles_say_why(noise: NoiseProfile | None, part: str) -> None:
    assert part in str(profile_problem(noise))


def test_a_fit_profile_has_no_problem_and_describes_itself() -> None:
    assert profile_problem(profile()) is None
    told = describe_noise(profile())
    assert told["largest"] == pytest.approx(max(abs(value) for value in profile().pair_means))
    assert told["upper_95"] == told["threshold_noise"] > told["upper_75"] == told["sequential_noise"] > told["rms"]
