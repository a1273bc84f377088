"""A plan with timing: ``run_gate`` adds a claim NAME/speed to NAME/lossless, in one report."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from lossguard import Plan, Timing, load_config, run_gate
from lossguard.devices.names import available_cores
from lossguard.gate import load_plan, rejudge
from lossguard.plan import Budget
from lossguard.records import Verdict
from lossguard.report.json_report import load_schema
from lossguard.report.terminal import render_report
from tests.baseline.toy_system import write_project
from tests.gate.conftest import _quick_power

pytestmark = pytest.mark.skipif(len(available_cores()) < 2, reason="two devices need two cores")


def test_both_claims_of_one_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSSGUARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LOSSGUARD_LEASES", str(tmp_path / "leases"))
    monkeypatch.setattr("lossguard.gate.estimate_power", _quick_power)
    write_project(tmp_path)
    timing = Timing(
        pairs=1,
        noise_pairs=1,
        requests=4,
        tokens=4,
        devices=("cpu:0", "cpu:1"),
        max_foreign_load=1.0,
        max_stolen=1.0,
        noise_root=tmp_path / "baselines",
    )
    budget = Budget(name="toy", num_requests=210, max_tokens=24, num_calibration=40)
    plan = Plan(
        load_config(tmp_path / "lossguard.toml"),
        candidates=["mine"],
        budget=budget,
        folder=tmp_path / "runs",
        timing=timing,
    )
    result = run_gate(plan)
    assert [claim.id for claim in result.claims] == ["mine/lossless", "mine/speed"]
    speed = result.claim("mine/speed")
    assert speed.verdict is Verdict.INCONCLUSIVE  # one pair, and a profile of one
    assert speed.evidence.gain is not None
    assert speed.evidence.gain_lower_bound is None or speed.evidence.gain_lower_bound <= speed.evidence.gain
    jsonschema.validate(json.loads(result.to_json()), load_schema())
    shown = render_report(result.report)
    assert "INCONCLUSIVE  mine against stock" in shown
    assert load_plan(result.run_folder).timing == timing
    again = rejudge(result.run_folder).claim("mine/speed")
    assert again.verdict is Verdict.INCONCLUSIVE
    assert "report.json" in again.evidence.checks[0].summary
