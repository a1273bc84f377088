"""Systems over loopback servers, judged by the whole gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lossguard.config import SystemConfig
from lossguard.engines.base import EngineSpec
from lossguard.engines.registry import engine_factory
from lossguard.engines.servers.server_engine import ServerEngine
from lossguard.gate import run_gate
from lossguard.gate_result import GateResult
from lossguard.plan import Budget, Plan
from lossguard.records import Request, SamplingParams
from tests.gate.conftest import Stack, make_stack
from tests.gate.toy import STOP_ID, write_model

BUDGET = Budget(name="loopback", num_requests=210, max_tokens=24, num_calibration=40)


@dataclass
class Bench:
    """The toy stack with systems that are servers."""

    stack: Stack

    def plan(
        self,
        engine: str,
        stock: Mapping[str, Any],
        candidate: Mapping[str, Any],
        *,
        expect: Mapping[str, Any] | None = None,
        resume: Path | None = None,
    ) -> Plan:
        """A plan over two servers, given by their options."""
        systems = {
            "stock": SystemConfig(name="stock", engine=engine, options=stock),
            "candidate": SystemConfig(name="candidate", engine=engine, options=candidate, expect=expect or {}),
        }
        config = replace(self.stack.config, systems=systems)
        return Plan(config, candidates=["candidate"], budget=BUDGET, folder=self.stack.folder / "runs", resume=resume)

    def judge(self, engine: str, stock: str, candidate: str, **options: Any) -> GateResult:
        """Judge the server at one URL against that at another."""
        dtype = {"logit_dtype": "bfloat16"}  # the toy rounds as such a stack does, whatever the server is called
        return run_gate(self.plan(engine, {"url": stock, **dtype}, {"url": candidate, **dtype, **options}))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(make_stack(tmp_path, monkeypatch))


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The toy model's folder."""
    return str(write_model(tmp_path_factory.mktemp("toy") / "model"))


def make_engine(kind: str, model: str, folder: Path | None = None, **options: Any) -> ServerEngine:
    """An engine as the gate makes it."""
    made = engine_factory(kind)(EngineSpec(name="candidate", model_path=model, options=options, folder=folder))
    assert isinstance(made, ServerEngine)
    return made


def make_requests(count: int = 3, *, max_tokens: int = 12, **sampling: Any) -> list[Request]:
    """Requests over the toy vocabulary."""
    asked = SamplingParams(max_tokens=max_tokens, stop_ids=(STOP_ID,), **sampling)
    return [
        Request(id=f"r{number}", prompt_ids=(5 + number, 6, 7, 8), sampling=asked, set="toy", cluster=f"c{number}")
        for number in range(count)
    ]
