"""A toy stack in a temporary folder: model, prompts, target, scorer, and plans over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from lossguard.checks.power import Power, PowerInput, estimate_power
from lossguard.config import Config, PromptsConfig
from lossguard.gate import run_gate
from lossguard.gate_result import GateResult
from lossguard.plan import Budget, Plan, SystemHandle
from tests.gate.toy import ToyEngine, ToyScorer, ToyTarget, handle, write_model, write_prompts

NUM_REQUESTS = 220
BUDGET = Budget(name="toy", num_requests=NUM_REQUESTS, max_tokens=40, num_calibration=60)


@dataclass
class Stack:
    """What a test needs to judge toy systems."""

    folder: Path
    config: Config
    target: ToyTarget = field(default_factory=ToyTarget)
    scorer: ToyScorer = field(default_factory=lambda: ToyScorer(ToyTarget()))

    def plan(
        self,
        candidates: Sequence[SystemHandle],
        *,
        stock: SystemHandle | None = None,
        resume: Path | None = None,
        temperature: float = 0.0,
    ) -> Plan:
        """A plan over the toy budget."""
        return Plan(
            self.config,
            baseline=stock or handle("stock", ToyEngine(self.target)),
            candidates=candidates,
            budget=BUDGET,
            folder=self.folder / "runs",
            resume=resume,
            temperature=temperature,
        )

    def judge(self, engine: ToyEngine) -> GateResult:
        """One candidate against stock."""
        return run_gate(self.plan([handle("candidate", engine)]))


def _quick_power(given: PowerInput) -> Power:
    """Fewer replicates: these tests are not about the figure."""
    return estimate_power(replace(given, num_replicates=20))


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """The toy stack; its scorer takes the place of the torch scorer."""
    return make_stack(tmp_path, monkeypatch)


def make_stack(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """The toy stack in a folder; its scorer takes the place of the torch scorer while the patch lasts."""
    monkeypatch.setenv("LOSSGUARD_CACHE", str(folder / "cache"))
    write_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", 400)
    config = Config(model="model", systems={}, prompts=PromptsConfig(sets=("prompts.jsonl",), seed=1), folder=folder)
    made = Stack(folder=folder, config=config)
    factory: Callable[..., object] = lambda _kind: lambda _path, _options: made.scorer  # noqa: E731
    monkeypatch.setattr("lossguard.stages.workspace.scorer_factory", factory)
    monkeypatch.setattr("lossguard.gate.estimate_power", _quick_power)
    return made
