"""A record of a real model: made by the transformers engine, used without starting it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lossguard.baseline.record import load_record
from lossguard.config import config_from_mapping
from lossguard.engines.transformers_engine import TransformersEngine
from lossguard.gate import record_baseline, run_gate
from lossguard.plan import Budget, Plan
from lossguard.records import Request, ServedOutput, Verdict


@pytest.mark.slow
def test_a_real_stock_is_recorded_and_not_started_again(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []
    real = TransformersEngine.serve

    def watched(engine: TransformersEngine, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        served.append(engine._spec.name)
        return real(engine, requests)

    monkeypatch.setattr(TransformersEngine, "serve", watched)
    system = {"engine": "transformers", "threads": 1}
    config = config_from_mapping(
        {"model": str(smollm2_path), "systems": {"stock": system, "same": system}, "prompts": {"sets": ["demo"]}}
    )
    budget = Budget(name="tiny", num_requests=12, max_tokens=6, num_calibration=12)
    plan = Plan(config, candidates=["same"], budget=budget, folder=tmp_path / "runs")
    record = record_baseline(plan, claim="same/lossless", target=tmp_path / "record.safetensors")
    assert set(served) == {"stock"}
    served.clear()
    result = run_gate(Plan(config, candidates=["same"], budget=budget, folder=tmp_path / "runs", record=record))
    assert set(served) == {"same"}
    assert result.verdict is not Verdict.FAIL
    assert tuple(result.report["thresholds"]["reasons"]) == load_record(record).thresholds.reasons
    stock = (result.run_folder / "stock" / "outputs.jsonl").read_text()
    assert len(stock.splitlines()) == budget.num_requests
