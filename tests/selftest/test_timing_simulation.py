"""The simulated half of ``selftest timing``: seeded, independent of the workers, and its small version holds."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from lossguard.listener import SilentListener
from lossguard.records import Verdict
from lossguard.selftest.base import SelftestOptions, render
from lossguard.selftest.timing_simulation import run, simulate_timing
from lossguard.timing.simulation.cells import Count, Limits, add_up
from lossguard.timing.simulation.experiments import CHUNK, chunks, experiments
from lossguard.timing.simulation.model import Scenario, request_noise


def test_figures_do_not_depend_on_the_number_of_workers() -> None:
    alone, pooled = (
        simulate_timing(num_campaigns=2 * CHUNK + 10, num_workers=workers, only="S0").evidence["cells"]
        for workers in (1, 2)
    )
    assert alone
    assert alone == pooled


def test_another_seed_gives_other_figures() -> None:
    first, second = (simulate_timing(num_campaigns=100, seed=seed, only="S4").evidence["cells"] for seed in (1, 2))
    assert first != second


def test_chunks_hold_all_campaigns_once() -> None:
    pieces = chunks(experiments()[:2], num_campaigns=2 * CHUNK + 1, seed=1)
    assert [piece.number for piece in pieces] == [CHUNK, CHUNK, 1] * 2
    assert len({experiment.name for experiment in experiments()}) == len(experiments())


def test_a_small_run_breaks_no_promise() -> None:
    """100 campaigns a cell: only what chance cannot explain (99 %) is a FAIL."""
    part = simulate_timing(num_campaigns=100)
    assert [problem for problem in part.problems if problem.startswith("FAIL")] == []
    assert {table.title for table in part.tables} >= {"coverage", "skewed", "promotion", "sequential", "re-submission"}
    assert json.loads(json.dumps(part.evidence, allow_nan=False))["num_campaigns"] == 100
    assert "S3 = S1 + launch noise 0.5 %" in render(part)


@pytest.mark.slow
def test_a_larger_run_breaks_no_promise() -> None:
    part = simulate_timing(num_campaigns=1_000, num_workers=2, seed=5)
    assert [problem for problem in part.problems if problem.startswith("FAIL")] == []


def test_the_command_line_gets_a_part() -> None:
    part = run(SelftestOptions(seed=3, size=4), SilentListener())
    assert part.name == "timing-simulate"
    assert part.evidence["num_campaigns"] == 4
    assert run(SelftestOptions(seed=3, size=4), SilentListener()).evidence["cells"] == part.evidence["cells"]


def test_a_broken_promise_is_found() -> None:
    """The bound that forgets launch noise covers 74 % in S3 (table 1): such a count must be a FAIL."""
    limits = Limits(low=0.93, high=0.995)
    assert Count(hits=740, number=1_000).meets(limits) is Verdict.FAIL
    assert Count(hits=5_000, number=5_000).meets(limits) is Verdict.FAIL
    assert Count(hits=920, number=1_000).meets(limits) is Verdict.INCONCLUSIVE
    assert Count(hits=960, number=1_000).meets(limits) is Verdict.PASS
    assert Count(hits=996, number=1_000).meets(limits) is Verdict.INCONCLUSIVE
    assert Count(hits=996, number=1_000).meets(replace(limits, chance_may_exceed=True)) is Verdict.PASS
    assert Count(hits=5_000, number=5_000).meets(replace(limits, chance_may_exceed=True)) is Verdict.FAIL


def test_counts_add_up() -> None:
    pieces = [chunk.run() for chunk in chunks(experiments()[:1], num_campaigns=20, seed=3)] * 3
    total = add_up(pieces)
    assert {value.number for value in total.values()} == {60}
    cell = next(iter(total))
    assert total[cell].hits == 3 * pieces[0][cell].hits


def test_noise_has_the_spread_that_it_claims() -> None:
    rng = np.random.default_rng(1)
    normal = request_noise(rng, (200_000,), Scenario(name="x", heavy_tails=False))
    assert float(normal.std()) == pytest.approx(0.01, rel=0.01)
    heavy = request_noise(rng, (200_000,), Scenario(name="x"))
    assert float(np.median(np.abs(heavy))) == pytest.approx(0.7649 / np.sqrt(3) * 0.01, rel=0.03)  # of Student's t, 3
    assert float(heavy.mean()) == pytest.approx(0.01 * 0.05, abs=1e-4)  # stalls
