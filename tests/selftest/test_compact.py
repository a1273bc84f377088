"""A compact export judges like the run that it was written from, but for what it leaves out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lossguard.checks.registry import builtin_checks
from lossguard.gate import run_gate
from lossguard.listener import SilentListener
from lossguard.selftest.compact import compact_systems, read_compact
from lossguard.selftest.detection import GATE, RED, DetectionPlan, measure_detection
from lossguard.selftest.measure import measure, read_stock_run, rho_by_set
from lossguard.selftest.recorded import read_comparison, recorded_systems
from lossguard_suites.adversarial.compact import write_compact
from tests.gate.conftest import make_stack
from tests.gate.toy import ToyEngine, handle, wrong_token

CHECKS = ("rate", "event", "near-tie", "buckets", "burst", "structure", "scores")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished toy run with a faulty and a lossless candidate."""
    with pytest.MonkeyPatch.context() as patch:
        stack = make_stack(tmp_path_factory.mktemp("toy"), patch)
        faulty = ToyEngine(stack.target, faults=(wrong_token(every=15),))
        same = ToyEngine(stack.target, batch_size=5)
        return run_gate(stack.plan([handle("faulty", faulty), handle("same", same)])).run_folder


def test_both_readers_give_the_verdicts_of_the_run(run: Path, tmp_path: Path) -> None:
    write_compact([run], tmp_path)
    assert set(compact_systems(tmp_path)) == set(recorded_systems(run)) == {"faulty", "same"}
    for system in ("faulty", "same"):
        readers = (read_comparison(run, system), read_compact(tmp_path, system))
        verdicts = [
            {check.name: check.run(given).verdict for check in builtin_checks() if check.name in CHECKS}
            for given in readers
        ]
        assert verdicts[0] == verdicts[1]
        assert (verdicts[0]["event"].value == "FAIL") is (system == "faulty")
        assert np.allclose(readers[0].candidate.scores.gap, readers[1].candidate.scores.gap)


@pytest.mark.slow
def test_detection_tells_the_fault_from_the_control(run: Path) -> None:
    plan = DetectionPlan(runs=(run,), controls=("same",), tokens=(500, 8000), num_samples=6)
    curves = {(curve.system, curve.rule): curve for curve in measure_detection(plan, SilentListener())}
    assert curves["faulty", GATE].shares[-1].count == 6
    assert curves["faulty", GATE].shares[0].count < 6
    assert curves["same", GATE].shares[-1].count == 0
    assert curves["same", RED].shares[0].count == 6, "under 200 clusters nothing passes"


def test_stock_is_measured_from_the_run(run: Path) -> None:
    found = read_stock_run(run)
    rows = rho_by_set([found])
    assert rows[-1]["set"] == "all"
    assert rows[-1]["num_clusters"] == 220
    assert 0 <= rows[-1]["rho"] <= 1
    statistics = measure("toy", [found])
    services = sum(scores.num_tokens for _, _, scores in found.services)
    assert statistics.num_tokens == services
    assert statistics.longest_reply == 40
    assert len(statistics.reply_length) == 220
    assert len(statistics.mismatch_gap) == round(statistics.rate * services)
