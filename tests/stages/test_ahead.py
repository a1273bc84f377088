"""Serving ahead: the same run as without it, sooner, and nothing is lost or hidden when the other process fails."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from lossguard.config import SystemConfig
from lossguard.errors import EngineError
from lossguard.gate import run_gate
from lossguard.gate_result import GateResult
from lossguard.listener import SilentListener
from lossguard.plan import Plan, SystemHandle
from lossguard.records import Verdict
from tests.gate.conftest import BUDGET, Stack, make_stack
from tests.gate.toy import ToyEngine, handle
from tests.gate.toy_by_name import KIND, PACE, SERVED_BY


@dataclass
class Claims(SilentListener):
    """The claims that were decided."""

    told: list[str] = field(default_factory=list)

    def claim(self, claim: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        self.told.append(claim["id"])


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    return make_stack(tmp_path, monkeypatch)


def plan_of(
    stack: Stack, candidates: Mapping[str, Mapping[str, Any]], handles: tuple[SystemHandle, ...] = (), **changes: Any
) -> Plan:
    """Stock and candidates by the configuration."""
    tables: dict[str, Mapping[str, Any]] = {"stock": {}, **candidates}
    systems = {name: SystemConfig(name=name, engine=KIND, options=options) for name, options in tables.items()}
    names = [name for name in candidates if name in systems]
    given: dict[str, Any] = {"budget": BUDGET, "folder": stack.folder / "runs", "serve_ahead": True, **changes}
    return Plan(replace(stack.config, systems=systems), candidates=[*names, *handles], **given)


def replies(run: Path, name: str, file: str = "outputs.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name / file).read_text(encoding="utf-8").splitlines()]


def ids(run: Path, name: str) -> list[tuple[str, list[int]]]:
    return [(reply["request_id"], reply["ids"]) for reply in replies(run, name)]


def served_by(run: Path, name: str, file: str = "outputs.jsonl") -> set[int]:
    return {int(reply["telemetry"][SERVED_BY][0]) for reply in replies(run, name, file)}


def verdicts(result: GateResult) -> dict[str, Verdict]:
    return {claim.id: claim.verdict for claim in result.claims}


def is_alive(process_id: int) -> bool:
    return Path(f"/proc/{process_id}").exists()


def test_another_process_serves_and_nothing_else_is_different(stack: Stack) -> None:
    candidates: dict[str, dict[str, Any]] = {"other": {"batch_size": 5}, "biased": {"bias": 3.0}}
    ahead, plain = (run_gate(plan_of(stack, candidates, serve_ahead=on)) for on in (True, False))
    assert verdicts(ahead) == verdicts(plain) == {"other/lossless": Verdict.PASS, "biased/lossless": Verdict.FAIL}
    for name in ("stock", *candidates):
        assert ids(ahead.run_folder, name) == ids(plain.run_folder, name)
    (apart,) = set.union(*(served_by(ahead.run_folder, name) for name in ("stock", *candidates)))
    assert apart != os.getpid()
    assert not is_alive(apart)
    assert served_by(ahead.run_folder, "stock", "calibration-outputs.jsonl") == {os.getpid()}
    assert served_by(plain.run_folder, "stock") == {os.getpid()}
    thresholds = [json.loads((run.run_folder / "calibration.json").read_text()) for run in (ahead, plain)]
    assert thresholds[0] == thresholds[1]


def test_an_exercise_is_served_ahead_in_its_waves(stack: Stack) -> None:
    plan = plan_of(stack, {"paced": {"batch_size": 5}})
    levels = replace(plan.config.systems["paced"], exercise={"concurrency": [1, 8]})
    config = replace(plan.config, systems={**plan.config.systems, "paced": levels})
    ahead, plain = (run_gate(replace(plan, config=config, serve_ahead=on)) for on in (True, False))
    assert ids(ahead.run_folder, "paced") == ids(plain.run_folder, "paced")
    paces = [[reply["telemetry"][PACE] for reply in replies(run.run_folder, "paced")] for run in (ahead, plain)]
    assert paces[0] == paces[1] == sorted(paces[0])
    assert {pace for (pace,) in paces[0]} == {1.0, 8.0}
    assert served_by(ahead.run_folder, "paced") == served_by(ahead.run_folder, "stock") != {os.getpid()}


def test_a_crash_is_raised_when_its_turn_comes_and_the_run_can_be_resumed(stack: Stack) -> None:
    candidates = {"good": {"batch_size": 5}, "ending": {"ends_at": 30, "home": os.getpid()}, "last": {}}
    listener = Claims()
    with pytest.raises(EngineError, match="status 9; its last words: the toy is over") as caught:
        run_gate(plan_of(stack, candidates), listener=listener)
    assert caught.value.code == "LG0212"
    assert listener.told == ["good/lossless"]
    (run,) = (stack.folder / "runs").glob("run-*")
    assert len(replies(run, "ending")) == 30
    assert not any(map(is_alive, served_by(run, "ending")))
    with pytest.raises(EngineError, match="the toy is over"):  # stock, opened ahead, has all its replies already
        run_gate(plan_of(stack, candidates, resume=run))
    assert len(replies(run, "ending")) == 60
    resumed = run_gate(plan_of(stack, candidates, serve_ahead=False, resume=run))
    assert verdicts(resumed) == dict.fromkeys((f"{name}/lossless" for name in candidates), Verdict.PASS)
    assert len(served_by(run, "ending")) == 3


def test_what_cannot_be_moved_is_served_in_its_turn_and_the_log_says_why(stack: Stack) -> None:
    plan = plan_of(stack, {"staying": {"movable": False}}, (handle("here", ToyEngine(stack.target)),))
    result = run_gate(plan)
    assert served_by(result.run_folder, "stock") != {os.getpid()}
    assert served_by(result.run_folder, "staying") == {os.getpid()}
    log = (result.run_folder / "log.txt").read_text(encoding="utf-8")
    assert "stock is served ahead, in a process apart" in log
    assert "staying is served in its turn: its engine does not say that another process serves the same" in log
    assert "here is served in its turn: it exists in this process only" in log
