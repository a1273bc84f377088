"""A toy stack, and a baseline recorded from it once for all tests of this folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lossguard.gate import record_baseline
from lossguard.plan import Plan, SystemHandle
from tests.gate.conftest import Stack, make_stack
from tests.gate.conftest import stack as stack
from tests.gate.toy import ToyEngine, handle

CLAIM = "tree-verify/greedy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A record file of the toy stock, and the engine that it was recorded from."""

    path: Path
    engine: ToyEngine
    run_folder: Path


def stock_plan(stack: Stack, engine: ToyEngine | None = None) -> Plan:
    """A plan to record the toy stock."""
    return stack.plan([], stock=handle("stock", engine or ToyEngine(stack.target)))


def recorded_plan(stack: Stack, record: Path, *candidates: SystemHandle, stock: ToyEngine | None = None) -> Plan:
    """A plan that judges candidates by a record."""
    return replace(stack.plan(list(candidates), stock=handle("stock", stock or ToyEngine(stack.target))), record=record)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Recorded once; tests must not write to it."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        made = make_stack(folder, patch)
        engine = ToyEngine(made.target)
        path = record_baseline(stock_plan(made, engine), claim=CLAIM, target=folder / "record.safetensors")
    return Recorded(path=path, engine=engine, run_folder=folder / "runs" / "run-0001")
