"""Measured error rates of the checks together, calibration included. Figures: run with ``-m slow -s``."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lossguard.checks.base import has_evidence
from lossguard.checks.burst_finding import BurstInput, RequestCounts, find_bursts
from lossguard.checks.registry import builtin_checks
from lossguard.checks.simulate import Simulation, simulate_pairs
from lossguard.records import Verdict
from tests.checks.conftest import lossless_run

NUM_RUNS = 300
NUM_BURST_RUNS = 3000


@pytest.mark.slow
def test_lossless_candidates_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """Rate 0.2 %, rho 0.002, 240 requests x 55 tokens; both arms draw their tokens independently (the worst case)."""
    seen: Counter[tuple[str, Verdict]] = Counter()
    num_failed = num_not_passed = 0
    for seed in range(NUM_RUNS):
        given = lossless_run(1000 + seed).given
        checks = [check for check in builtin_checks() if check.applies(given.requests) and has_evidence(check, given)]
        results = {check.name: check.run(given).verdict for check in checks}
        seen.update(results.items())
        num_failed += Verdict.FAIL in results.values()
        num_not_passed += set(results.values()) != {Verdict.PASS}
    with capsys.disabled():
        _show(f"{NUM_RUNS} runs: FAIL {num_failed}, not PASS {num_not_passed}, {dict(seen)}")
    assert num_failed / NUM_RUNS <= 0.03
    assert num_not_passed / NUM_RUNS <= 0.04


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "rho"), [(0.002, 0.002), (0.002, 0.01), (0.0003, 0.002)])
def test_burst_false_alarms(rate: float, rho: float, capsys: pytest.CaptureFixture[str]) -> None:
    """Share of lossless runs that burst fails, and that its p < 1e-6 rule fails."""
    lengths = tuple(range(46, 64))
    tests = simulate_pairs(Simulation(rate=rate, rho=rho, lengths=lengths, num_clusters=240), NUM_BURST_RUNS, 1)
    calibration = simulate_pairs(Simulation(rate=rate, rho=rho, lengths=lengths, num_clusters=80), NUM_BURST_RUNS, 2)
    failed = alone = 0
    for run in range(NUM_BURST_RUNS):
        found = find_bursts(
            BurstInput(
                candidate=RequestCounts(mismatches=tests.candidate[run], tokens=tests.candidate_tokens[run]),
                stock=RequestCounts(mismatches=tests.stock[run], tokens=tests.stock_tokens[run]),
                calibration=RequestCounts(mismatches=calibration.stock[run], tokens=calibration.stock_tokens[run]),
                cluster=np.arange(240),
                seed=run,
            )
        )
        failed += found.fails
        alone += found.smallest_counted_p < 1e-6
    with capsys.disabled():
        _show(f"rate {rate}, rho {rho}, {NUM_BURST_RUNS} runs: burst FAIL {failed}, by p < 1e-6 {alone}")
    assert failed / NUM_BURST_RUNS <= 0.003


def _show(text: str) -> None:
    print(f"\n{text}")  # noqa: T201 - the figures are what this test is run for
