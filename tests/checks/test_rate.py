from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.bootstrap_t import cluster_weights
from lossguard.checks.power import detectable_excess
from lossguard.checks.rate import RateCheck, rate_bounds
from lossguard.checks.simulate import KINDS, Kind, Simulation, simulate_pairs
from lossguard.records import CheckResult, Request, Verdict, require_finite
from tests.checks.conftest import LosslessRun
from tests.checks.simulated_arms import ArmSpec, check_input, make_arm, make_requests, thresholds


def run_with(rates: tuple[float, float], num_requests: int = 240, **limits: object) -> CheckResult:
    generator = np.random.default_rng(1)
    requests = make_requests(num_requests)
    arms = [
        make_arm(
            generator,
            requests,
            ArmSpec(name=name, lengths=np.full(num_requests, 60), shares=np.full(num_requests, rate)),
        )
        for name, rate in zip(("candidate", "stock"), rates, strict=True)
    ]
    result = RateCheck().run(check_input(requests, arms[0], arms[1], thresholds(**limits)))
    require_finite(result.to_json())
    return result


def test_a_lossless_candidate_passes_and_fills_the_table(lossless: LosslessRun) -> None:
    result = RateCheck().run(lossless.given)
    assert result.verdict is Verdict.PASS
    assert result.candidate.endswith(" %")
    assert result.stock.endswith(" %")
    assert result.bound.endswith(" pt")
    assert result.limit.startswith("+")
    assert result.evidence["upper_95"] == max(result.evidence["bootstrap_upper_95"], result.evidence["guard_upper_95"])


def test_the_result_is_a_function_of_the_seed(lossless: LosslessRun) -> None:
    check = RateCheck()
    assert check.run(lossless.given) == check.run(lossless.given)
    other = check.run(replace(lossless.given, seed=18))
    assert other.evidence["bootstrap_upper_95"] != check.run(lossless.given).evidence["bootstrap_upper_95"]
    assert other.evidence["difference"] == check.run(lossless.given).evidence["difference"]


def test_an_excess_over_the_margin_fails() -> None:
    assert run_with((0.012, 0.002)).verdict is Verdict.FAIL


def test_an_excess_within_the_margin_is_no_failure_even_if_it_is_certain() -> None:
    result = run_with((0.03, 0.01), margin=0.05)
    assert result.evidence["lower_99"] > 0
    assert result.verdict is Verdict.PASS


def test_too_wide_a_bound_is_inconclusive_and_says_how_much_is_missing() -> None:
    result = run_with((0.005, 0.005), margin=0.001)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "more clusters" in result.summary
    assert "more tokens per system" in result.summary


def test_under_200_clusters_it_can_fail_but_never_pass() -> None:
    assert run_with((0.002, 0.002), num_requests=199, margin=0.05).verdict is Verdict.INCONCLUSIVE
    assert "1 more cluster" in run_with((0.002, 0.002), num_requests=199, margin=0.05).summary
    assert run_with((0.05, 0.002), num_requests=100).verdict is Verdict.FAIL


def test_200_clusters_are_enough_to_pass() -> None:
    assert run_with((0.002, 0.002), num_requests=200, margin=0.05).verdict is Verdict.PASS


def test_repeats_of_a_prompt_are_one_cluster(lossless: LosslessRun) -> None:
    requests = [replace(request, cluster=f"p{index // 2}") for index, request in enumerate(lossless.given.requests)]
    result = RateCheck().run(replace(lossless.given, requests=requests))
    assert result.evidence["num_clusters"] == 120
    assert result.verdict is Verdict.INCONCLUSIVE


def test_no_mismatch_anywhere_passes_by_the_exact_bound() -> None:
    result = run_with((0.0, 0.0), margin=0.001)
    assert result.verdict is Verdict.PASS
    assert result.evidence["upper_95"] == pytest.approx(3.0 / (240 * 60), rel=0.01)


def test_problems_of_calibration_forbid_a_verdict() -> None:
    result = run_with((0.5, 0.0), problems={"rate": "delta rests on nothing"})
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "delta rests on nothing" in result.summary


def emptied(arm: Arm, requests: tuple[Request, ...]) -> Arm:
    lengths = np.zeros(len(requests), dtype=np.int64)
    generator = np.random.default_rng(0)
    return make_arm(generator, requests, ArmSpec(name=arm.name, lengths=lengths, shares=np.zeros(len(requests))))


def test_an_arm_without_tokens_is_inconclusive(lossless: LosslessRun) -> None:
    given: CheckInput = lossless.given
    empty = emptied(given.candidate, tuple(given.requests))
    assert RateCheck().run(replace(given, candidate=empty)).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_candidate_worse_by_the_margin_rarely_passes(kind: Kind) -> None:
    simulation = Simulation(
        rate=0.007, rho=0.005, lengths=tuple(range(64, 700, 7)), num_clusters=200, excess=0.005, kind=kind
    )
    bounds = rate_bounds(simulate_pairs(simulation, 300, 4), cluster_weights(200, 2000, 4))
    assert bounds.passes(0.005).mean() <= 0.10  # nominal 0.05; 300 runs


def test_the_detectable_excess_is_detected_nine_times_in_ten() -> None:
    excess = detectable_excess(0.002, 0.004, 240 * 55)
    simulation = Simulation(
        rate=0.002, rho=0.0, lengths=(55,), num_clusters=240, excess=excess, kind="spread", is_shared=False
    )
    bounds = rate_bounds(simulate_pairs(simulation, 400, 2), cluster_weights(240, 2000, 2))
    assert 0.85 <= bounds.fails(0.004).mean() <= 0.97
