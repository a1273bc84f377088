"""Speed through the gate: noise kept in the baseline, claims, ledger, report, resume, and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lossguard import Plan, Timing, load_config
from lossguard.baseline.noise_record import list_noise, read_noise
from lossguard.cli.main import run as run_cli
from lossguard.devices.names import available_cores
from lossguard.errors import BaselineError, IntegrityError, UsageError
from lossguard.gate import load_plan, record_noise, run_timing
from lossguard.ledger import Ledger
from lossguard.records import Verdict
from lossguard.report.json_report import load_schema
from lossguard.report.terminal import render_report
from lossguard.stages.timing.run_log import read_run
from lossguard.timing.base import NoiseProfile, PairTimes
from lossguard.timing.control_chart import ControlChart, control_chart
from tests.gate.toy import ToyEngine, ToyTarget, handle, write_model, write_prompts

pytestmark = pytest.mark.skipif(len(available_cores()) < 2, reason="two devices need two cores")
SYSTEMS = {"stock": 0.006, "same": 0.006, "fast": 0.002, "slow": 0.018, "junk": 0.003}
TIMING = Timing(
    pairs=4,
    requests=6,
    tokens=5,
    devices=("cpu:0", "cpu:1"),
    relaunch="reset",
    max_foreign_load=1.0,
    max_stolen=1.0,
    faster_than=1.3,
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A configuration of toy systems, and the noise profile of its stock."""
    folder = tmp_path_factory.mktemp("timing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOSSGUARD_CACHE", str(folder / "cache"))
        patch.setenv("LOSSGUARD_LEASES", str(folder / "leases"))
        write_model(folder / "model")
        write_prompts(folder / "prompts.jsonl", 200)
        tables = "".join(
            f'[systems.{name}]\nengine = "tests.stages.timing.toy_engine:create"\n'
            f"token_seconds = {seconds}\ncan_reset = true\nother_tokens = {str(name == 'junk').lower()}\n"
            for name, seconds in SYSTEMS.items()
        )
        prompts = '[prompts]\nsets = ["prompts.jsonl"]\nseed = 1\n'
        (folder / "lossguard.toml").write_text(f'model = "model"\n{tables}{prompts}')
        record_noise(plan(folder))
        yield folder


def plan(folder: Path, *candidates: str, **changes: Any) -> Plan:
    """A timing plan over the project."""
    timing = replace(TIMING, noise_root=folder / "baselines", **changes)
    return Plan(load_config(folder / "lossguard.toml"), candidates=candidates, folder=folder / "runs", timing=timing)


def test_noise_is_kept_in_the_baseline(project: Path) -> None:
    (path,) = list_noise(project / "baselines", "stock")
    record = read_noise(path)
    assert len(record.pairs) == 8
    assert record.fingerprint.identity["device.timed"] == "cpu:0+cpu:1"
    assert record.summary["num_pairs"] == 8


def test_speed_needs_no_scorer(project: Path) -> None:
    given = plan(project, "fast", pairs=1)
    without = replace(given.config, scorer=replace(given.config.scorer, engine="nowhere"))
    result = run_timing(replace(given, config=without, folder=project / "runs-without"))
    assert [claim.id for claim in result.claims] == ["fast/speed"]


def test_a_fast_candidate_is_promoted_and_its_bound_is_there_for_programs(project: Path) -> None:
    result = run_timing(plan(project, "fast"))
    claim = result.claim("fast/speed")
    if claim.verdict is Verdict.INCONCLUSIVE:  # a busy machine: stock off its chart, or bounds too wide
        assert claim.evidence.checks[0].notes
        pytest.skip(f"this machine is too noisy now: {claim.evidence.checks[0].notes[0]}")
    assert result.verdict is Verdict.PASS
    assert claim.evidence.gain_lower_bound is not None
    assert claim.evidence.gain_lower_bound > 0.3
    parts = claim.evidence.checks[0].evidence["estimate"]["variance_parts"]
    assert parts["kept_launches"] > 0, "the processes live through all pairs, and the A/A mean is never just 0"
    jsonschema.validate(json.loads(result.to_json()), load_schema())
    assert json.loads(result.to_json())["claims"][0]["gain_lower_bound"] == claim.evidence.gain_lower_bound
    assert "FASTER  fast against stock" in render_report(result.report)


def test_the_same_candidate_is_not_promoted_however_often_it_comes(project: Path) -> None:
    """A/A under another name. Every submission adds its pairs to one test, under the first one's looks."""
    seen = []
    for pairs in (4, 1, 1):
        result = run_timing(plan(project, "same", pairs=pairs, faster_than=1.2))
        evidence = result.claims[0].evidence.checks[0].evidence
        assert not result.verdict.is_pass
        seen.append((evidence["num_pairs"], evidence["num_earlier_pairs"]))
        assert evidence["sequential"]["looks"] == [4]
    assert seen == [(4, 0), (5, 4), (6, 5)]
    names = [path.name for path in (result.run_folder / "timing" / "same" / "runs").iterdir()]
    assert sorted(names) == ["pair-005-run-0.jsonl", "pair-005-run-1.jsonl"]


def test_a_slow_candidate_fails_both_rules(project: Path) -> None:
    for changes in ({}, {"faster_than": None, "not_slower": 0.05}):
        claim = run_timing(plan(project, "slow", **changes)).claim("slow/speed")
        assert claim.verdict is not Verdict.PASS
        assert claim.evidence.gain is not None
        assert claim.evidence.gain < -0.3


def test_a_ledger_that_was_tampered_with_stops_everything(project: Path, tmp_path: Path) -> None:
    result = run_timing(replace(plan(project, "fast", pairs=1), folder=tmp_path))
    assert not result.verdict.is_pass
    (tmp_path / "timing-ledger.sqlite").write_bytes(b"gone" * 1_000)
    with pytest.raises(IntegrityError, match="LG1008"):
        run_timing(replace(plan(project, "fast", pairs=1), folder=tmp_path))


def test_a_ledger_that_is_gone_is_missed(project: Path, tmp_path: Path) -> None:
    """Run folders remember its head; and the report says where a first ledger comes from."""
    first = run_timing(replace(plan(project, "fast", pairs=1), folder=tmp_path))
    assert "0 earlier pairs; the ledger was created by this run" in first.claims[0].evidence.checks[0].notes
    (tmp_path / "timing-ledger.sqlite").unlink()
    with pytest.raises(IntegrityError, match="LG1008"):
        run_timing(replace(plan(project, "fast", pairs=1), folder=tmp_path))
    with pytest.raises(IntegrityError, match="LG1008"):
        run_timing(load_plan(first.run_folder))


def test_the_same_pairs_are_not_judged_by_the_luckiest_estimand(project: Path, tmp_path: Path) -> None:
    run_timing(replace(plan(project, "fast", pairs=1), folder=tmp_path))
    with pytest.raises(UsageError, match="LG1013"):
        run_timing(replace(plan(project, "fast", pairs=1, estimand="suite"), folder=tmp_path))
    other_rule = replace(plan(project, "fast", pairs=1, faster_than=None, not_slower=0.01), folder=tmp_path)
    notes = run_timing(other_rule).claims[0].evidence.checks[0].notes
    assert any("Bonferroni" in note for note in notes)


def test_a_disturbed_stock_is_not_forgotten_by_the_next_submission(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chart sees the pairs of all submissions, as it stood at the end of each."""
    seen = []

    def chart(times: PairTimes, noise: NoiseProfile) -> ControlChart:
        seen.append(times.num_pairs)
        return replace(control_chart(times, noise), is_off=times.num_pairs == 2, reason="disturbed")

    monkeypatch.setattr("lossguard.stages.timing.timed_candidate.control_chart", chart)
    for pairs in (2, 1):
        result = run_timing(replace(plan(project, "fast", pairs=pairs), folder=tmp_path))
        assert "control chart: disturbed" in result.claims[0].evidence.checks[0].notes
    assert seen == [2, 2, 3]


def test_timed_replies_that_nobody_judged_promote_nothing(project: Path) -> None:
    result = run_timing(plan(project, "junk"))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert any("differ from stock's in 48 of 48" in note for note in result.claims[0].evidence.checks[0].notes)


def test_interrupted_noise_of_another_machine_is_not_continued(project: Path, tmp_path: Path) -> None:
    timing = replace(TIMING, pairs=1, noise_pairs=1, noise_root=tmp_path / "none")
    first = run_timing(replace(plan(project, "fast"), timing=timing, folder=tmp_path / "runs"))
    key = first.run_folder / "timing" / "noise" / "key.json"
    facts = json.loads(key.read_text())
    facts["stock"]["cpu.model"] = "another machine"
    key.write_text(json.dumps(facts))
    with pytest.raises(UsageError, match="LG1012"):
        run_timing(load_plan(first.run_folder))


def test_a_resumed_run_measures_nothing_twice(project: Path) -> None:
    first = run_timing(plan(project, "fast", pairs=1))
    record = first.run_folder / "timing" / "fast" / "runs" / "pair-000-run-0.jsonl"
    files = sorted((first.run_folder / "timing" / "fast" / "runs").iterdir())
    num_rows = len(Ledger(project / "runs" / "timing-ledger.sqlite").entries())
    before = [path.read_bytes() for path in files]
    again = run_timing(load_plan(first.run_folder))
    assert [path.read_bytes() for path in files] == before
    assert sorted(record.parent.iterdir()) == files
    assert len(Ledger(project / "runs" / "timing-ledger.sqlite").entries()) == num_rows
    assert again.claims[0].evidence.gain == first.claims[0].evidence.gain
    assert read_run(files[0]) is not None


def test_a_resumed_run_of_another_candidate_is_refused(project: Path) -> None:
    first = run_timing(plan(project, "fast", pairs=1))
    resumed = load_plan(first.run_folder)
    campaign = first.run_folder / "timing" / "fast" / "campaign.json"
    campaign.write_text(json.dumps({**json.loads(campaign.read_text()), "key": "another"}))
    with pytest.raises(UsageError, match="LG1012"):
        run_timing(resumed)


def test_noise_of_another_machine_is_refused(project: Path, tmp_path: Path) -> None:
    (path,) = list_noise(project / "baselines", "stock")
    record = read_noise(path)
    foreign = replace(record, fingerprint=replace(record.fingerprint, identity={"device.timed": "cpu:6+cpu:7"}))
    target = tmp_path / "stock" / path.name
    target.parent.mkdir()
    target.write_text(json.dumps(foreign.to_json()))
    with pytest.raises(BaselineError, match="LG1006"):
        run_timing(replace(plan(project, "fast"), timing=replace(TIMING, noise_root=tmp_path)))
    target.write_text(json.dumps({**foreign.to_json(), "created": "yesterday"}))
    with pytest.raises(BaselineError, match="LG1007"):
        read_noise(target)


def test_a_system_of_this_process_is_refused(project: Path) -> None:
    given = replace(plan(project), candidates=(handle("mine", ToyEngine(ToyTarget())),))
    with pytest.raises(UsageError, match="LG1010"):
        run_timing(given)


def test_a_plan_without_timing_is_refused(project: Path) -> None:
    with pytest.raises(UsageError, match="LG1003"):
        run_timing(replace(plan(project, "fast"), timing=None))


def test_the_command_line_times_and_shows_noise(
    project: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["--config", str(project / "lossguard.toml"), "--store", str(project / "baselines")]
    sizes = ["--requests", "6", "--tokens", "5", "--pairs", "1", "--devices", "cpu:0,cpu:1", "--relaunch", "reset"]
    target = tmp_path / "report.json"
    code = run_cli(
        ["time", "--candidate", "fast", *arguments, *sizes, "--folder", str(tmp_path), "--json", str(target)]
    )
    assert code == 10  # one pair is no verdict
    assert json.loads(target.read_text())["claims"][0]["id"] == "fast/speed"
    out = capsys.readouterr()
    assert "INCONCLUSIVE  fast against stock" in out.out
    assert "plan: 1 swap pairs" in out.err
    assert run_cli(["noise", "show", "stock", "--store", str(project / "baselines")]) == 0
    assert "8 pairs" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [["time", "--candidate", "fast", "--baseline", "base"], ["noise", "record", "base"]],
    ids=lambda one: one[0],
)
def test_the_baseline_may_have_any_name(project: Path, tmp_path: Path, command: list[str]) -> None:
    config = project / "renamed.toml"
    config.write_text((project / "lossguard.toml").read_text().replace("[systems.stock", "[systems.base"))
    pairs = "1" if command[0] == "time" else "8"
    sizes = ["--requests", "6", "--tokens", "5", "--pairs", pairs, "--devices", "cpu:0,cpu:1", "--relaunch", "reset"]
    sizes += ["--max-foreign-load", "1.0"]
    rest = ["--config", str(config), "--store", str(tmp_path / "store"), "--folder", str(tmp_path / "runs")]
    assert run_cli([*command, *rest, *sizes]) == (10 if command[0] == "time" else 0)
