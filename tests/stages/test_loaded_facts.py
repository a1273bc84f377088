"""What an engine knows of its weights once it has them stands in the report, also when a run is judged again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lossguard.gate import rejudge, run_gate
from lossguard.plan import Budget, Plan
from lossguard.records import Request, ServedOutput
from tests.gate.conftest import make_stack
from tests.gate.toy import ToyEngine, handle

BUDGET = Budget(name="loaded", num_requests=12, max_tokens=4, num_calibration=8)
TEXT = "41 of 42 layers, left dense: layers.1.mlp.in_proj (raw: 0.5 of its weights would escape, the limit is 0.02)"


@dataclass
class TellingEngine(ToyEngine):
    """Knows what became of its layers once it has served."""

    text: str = ""

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        self.text = TEXT
        yield from super().serve(requests)

    def loaded_facts(self) -> Mapping[str, Any]:
        return {"w12": self.text} if self.text else {}


def test_the_report_shows_what_was_left_dense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = make_stack(tmp_path, monkeypatch)
    stock = handle("stock", ToyEngine(stack.target))
    coded = handle("coded", TellingEngine(stack.target))
    plan = Plan(stack.config, baseline=stock, candidates=[coded], budget=BUDGET, folder=tmp_path / "runs")
    result = run_gate(plan)
    facts = result.report["fingerprint"]
    assert facts["candidates"]["coded"]["measured"]["loaded.w12"] == TEXT
    assert not any("loaded" in key for key in facts["stock"]["measured"])
    assert result.run_folder is not None
    assert rejudge(result.run_folder).report["fingerprint"] == facts
