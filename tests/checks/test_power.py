from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lossguard.checks.power import PowerInput, detectable_excess, estimate_power
from lossguard.checks.simulate import KINDS, Kind, Simulation, simulate_pairs
from lossguard.records import require_finite
from tests.checks.conftest import LosslessRun


def power_input(lossless: LosslessRun, num_requests: int = 240, num_replicates: int = 60) -> PowerInput:
    return PowerInput(
        requests=lossless.calibration.requests,
        stock=lossless.calibration.stock,
        recomposed=lossless.recomposed,
        thresholds=lossless.thresholds,
        num_requests=num_requests,
        mean_tokens=55,
        seed=2,
        num_replicates=num_replicates,
    )


def test_power_of_a_lossless_stack(lossless: LosslessRun) -> None:
    power = estimate_power(power_input(lossless))
    assert power.pass_given_lossless_fraction >= 0.9
    assert power.fail_given_lossless_fraction <= 0.05
    assert 100 * lossless.thresholds.margin * 0.5 < power.detectable_excess_points < 2
    assert set(power.pass_fraction_by_check) == {"rate", "near-tie", "burst", "buckets", "event"}
    require_finite(power.to_json())
    assert power == estimate_power(power_input(lossless))


def test_clusters_are_those_of_the_run_where_calibration_has_other_ones(lossless: LosslessRun) -> None:
    """Half of the calibration prompts in one cluster, and a run of which every prompt is its own."""
    given = power_input(lossless, num_replicates=20)
    half = len(given.requests) // 2
    lumped = [replace(request, cluster="one") if at < half else request for at, request in enumerate(given.requests)]
    proportional = estimate_power(replace(given, requests=lumped))
    assert proportional.pass_given_lossless_fraction == 0.0
    counted = estimate_power(replace(given, requests=lumped, num_clusters=240))
    assert counted.pass_given_lossless_fraction > 0.5
    assert "of 240 clusters" in counted.reasons[0]


def test_too_few_requests_never_pass(lossless: LosslessRun) -> None:
    power = estimate_power(power_input(lossless, num_requests=150, num_replicates=5))
    assert power.pass_given_lossless_fraction == 0.0
    assert any("under 200 clusters" in reason for reason in power.reasons)


def test_a_check_that_calibration_forbids_counts_as_not_passed(lossless: LosslessRun) -> None:
    limits = replace(lossless.thresholds, problems={"event": "no threshold"})
    power = estimate_power(replace(power_input(lossless, num_replicates=5), thresholds=limits))
    assert power.pass_fraction_by_check["event"] == 0.0
    assert power.pass_given_lossless_fraction == 0.0


def test_a_margin_within_the_noise_shows_in_the_pass_fraction(lossless: LosslessRun) -> None:
    limits = replace(lossless.thresholds, margin=0.0003)
    power = estimate_power(replace(power_input(lossless, num_replicates=40), thresholds=limits))
    assert power.pass_fraction_by_check["rate"] < 0.5


def test_repeats_and_other_lengths_are_taken_into_account(lossless: LosslessRun) -> None:
    requests = [
        replace(request, cluster=f"p{index // 2}") for index, request in enumerate(lossless.calibration.requests)
    ]
    power = estimate_power(replace(power_input(lossless, num_replicates=5), requests=requests, mean_tokens=500))
    assert any("120 clusters" in reason for reason in power.reasons)
    assert any("on average" in reason for reason in power.reasons)


def test_the_detectable_excess_falls_to_the_margin_as_tokens_grow() -> None:
    excesses = [detectable_excess(0.002, 0.004, tokens) for tokens in (100, 1_000, 5_000)]
    assert excesses == sorted(excesses, reverse=True)
    # with many tokens anything under the margin passes, so that nothing smaller can fail
    assert detectable_excess(0.002, 0.004, 10_000_000) == pytest.approx(0.004, rel=0.01)
    assert detectable_excess(0.5, 0.004, 0.5) == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_simulated_excess_is_the_one_asked_for(kind: Kind) -> None:
    simulation = Simulation(rate=0.01, rho=0.01, lengths=(50, 100, 200), num_clusters=300, excess=0.02, kind=kind)
    sums = simulate_pairs(simulation, 200, 1)
    difference = sums.candidate.sum() / sums.candidate_tokens.sum() - sums.stock.sum() / sums.stock_tokens.sum()
    assert difference == pytest.approx(0.0 if kind == "none" else 0.02, abs=0.0015)
    assert np.array_equal(sums.candidate, simulate_pairs(simulation, 200, 1).candidate)
