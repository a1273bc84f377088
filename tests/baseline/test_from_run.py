"""The stock of a finished run as a record: what recording it alone would have given, without serving anything again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lossguard.baseline.record import load_record
from lossguard.errors import IntegrityError, LossguardError
from lossguard.gate import record_from_run, run_gate
from lossguard.records import Verdict
from tests.baseline.conftest import Recorded, recorded_plan
from tests.gate.conftest import Stack
from tests.gate.toy import ToyEngine, handle


@pytest.fixture
def finished(stack: Stack) -> Path:
    """A run of the toy stock against a lossless candidate."""
    return run_gate(stack.plan([handle("candidate", ToyEngine(stack.target, batch_size=5))])).run_folder


def test_it_is_the_record_of_stock_alone(stack: Stack, recorded: Recorded, finished: Path, tmp_path: Path) -> None:
    path = record_from_run(finished, claim="tree-verify/greedy", target=tmp_path / "record.safetensors")
    found, expected = load_record(path), load_record(recorded.path)
    assert found.test == expected.test
    assert found.calibration == expected.calibration
    assert found.recomposed == expected.recomposed
    assert found.thresholds == expected.thresholds
    assert found.parameters == expected.parameters
    assert found.fingerprint.identity == expected.fingerprint.identity
    assert found.rules_sha256 == expected.rules_sha256
    judged = run_gate(recorded_plan(stack, path, handle("candidate", ToyEngine(stack.target, batch_size=5))))
    assert judged.verdict is Verdict.PASS


def test_a_run_that_was_judged_by_a_record_gives_none(stack: Stack, recorded: Recorded, tmp_path: Path) -> None:
    candidate = handle("candidate", ToyEngine(stack.target, batch_size=5))
    run = run_gate(recorded_plan(stack, recorded.path, candidate)).run_folder
    with pytest.raises(LossguardError, match="LG0710"):
        record_from_run(run, claim="a", target=tmp_path / "record")


@pytest.mark.parametrize("file", ["report.json", "stock/outputs.jsonl", "stock/calibration-outputs.jsonl"])
def test_an_unfinished_run_gives_none(file: str, finished: Path, tmp_path: Path) -> None:
    (finished / file).unlink()
    with pytest.raises(IntegrityError, match=r"LG0606|LG0613"):
        record_from_run(finished, claim="a", target=tmp_path / "record")
    assert not (tmp_path / "record").exists()


def test_changed_scores_are_found(finished: Path, tmp_path: Path) -> None:
    scores = next((finished / "stock").glob("calibration-scores-*.safetensors"))
    scores.write_bytes(scores.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError, match="LG0617"):
        record_from_run(finished, claim="a", target=tmp_path / "record")


def test_names_are_checked_first(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(LossguardError, match="LG0708"):
        record_from_run(finished, claim=" ", target=tmp_path / "record")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LossguardError, match="LG0605"):
        record_from_run(tmp_path, claim="a", target=tmp_path / "record")


def test_rules_are_those_of_the_run(finished: Path, tmp_path: Path) -> None:
    report = finished / "report.json"
    rules = load_record(record_from_run(finished, claim="a", target=tmp_path / "first")).rules_sha256
    report.write_text(report.read_text().replace(rules, "0" * 64))
    again = load_record(record_from_run(finished, claim="a", target=tmp_path / "second"))
    assert again == replace(again, rules_sha256="0" * 64)
