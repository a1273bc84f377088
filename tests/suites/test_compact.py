"""The compact form of a run: what was served, how it was scored, which events were explained."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from lossguard.gate import run_gate
from lossguard_suites.adversarial.compact import write_compact
from tests.gate.conftest import make_stack
from tests.gate.toy import ToyEngine, handle, wrong_token


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    with pytest.MonkeyPatch.context() as patch:
        stack = make_stack(folder, patch)
        candidates = [
            handle("same", ToyEngine(stack.target)),
            handle("wrong", ToyEngine(stack.target, faults=(wrong_token(20),))),
        ]
        return run_gate(stack.plan(candidates)).run_folder


def test_columns_are_those_of_the_run(run_folder: Path, tmp_path: Path) -> None:
    write_compact([run_folder], tmp_path)
    facts = json.loads((tmp_path / f"{run_folder.name}.json").read_text())
    same = load_file(tmp_path / f"{run_folder.name}_same.safetensors")
    stock = load_file(tmp_path / f"{run_folder.name}_same.stock.safetensors")
    wrong = load_file(tmp_path / f"{run_folder.name}_wrong.safetensors")
    assert not (tmp_path / f"{run_folder.name}_wrong.stock.safetensors").exists()
    assert [claim["candidate"] for claim in facts["claims"]] == ["same", "wrong"]
    assert len(facts["request_ids"]) == len(facts["clusters"]) == len(same["offsets"]) - 1
    assert np.array_equal(same["served_id"], stock["served_id"])
    for columns in (same, wrong):
        lengths = {len(column) for name, column in columns.items() if name not in ("offsets", "events")}
        assert lengths == {int(columns["offsets"][-1])}
        assert np.array_equal(columns["gap"] == 0, columns["best_minus_served"] == 0)
        assert (columns["second_gap"] >= 0).all()
    events = wrong["events"]
    assert len(events) > 0
    assert set(events[:, 2].tolist()) <= {-1, 0, 1}
    for request, position, _explained in events:
        assert wrong["gap"][wrong["offsets"][request] + position] >= facts["thresholds"]["event_nats"]


def test_a_run_that_was_cut_short_is_left_out(run_folder: Path, tmp_path: Path) -> None:
    unfinished = tmp_path / "run-0009"
    unfinished.mkdir()
    (unfinished / "plan.json").write_text((run_folder / "plan.json").read_text())
    write_compact([unfinished], tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
