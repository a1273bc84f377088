"""The engine through the gate on the committed hybrid: plain decoding and DFlash2's chain at batches of 1, 8 and 32."""

from __future__ import annotations

from pathlib import Path

import pytest

from lossguard.config import config_from_mapping
from lossguard.gate import run_gate
from lossguard.plan import Budget, Plan
from lossguard.records import Verdict
from lossguard.report.terminal import render_report

ROOT = Path(__file__).parents[3]
ENGINE = {"engine": "lossguard_mechanisms.engine.adapter:create", "threads": 1, "slots": 32, "prefill_chunk": 48}
LEVELS = {"exercise": {"concurrency": [1, 8, 32]}}  # a tenth of the requests one at a time, a tenth in batches of 8
CONFIG = {
    "model": "fixtures/hybrid-target",
    "scorer": {"threads": 1},
    "prompts": {"sets": ["demo"], "seed": 17},  # all five kinds, short enough for a test
    "systems": {
        "stock": ENGINE,
        "plain": {**ENGINE, **LEVELS},
        "chain": {**ENGINE, **LEVELS, "drafter": str(ROOT / "fixtures/hybrid-dflash2"), "expect": {"drafts": True}},
    },
}
BUDGET = Budget(name="engine", num_requests=224, max_tokens=40, num_calibration=120)


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "fixtures/hybrid-target/model.safetensors").is_file(), reason="no committed target")
def test_plain_decoding_and_chains_pass_at_every_batch_size(tmp_path: Path) -> None:
    config = config_from_mapping(CONFIG, folder=ROOT, source="this test")
    result = run_gate(Plan(config, candidates=["plain", "chain"], budget=BUDGET, folder=tmp_path))
    assert {claim.id: claim.verdict for claim in result.claims} == {
        "plain/lossless": Verdict.PASS,
        "chain/lossless": Verdict.PASS,
    }, render_report(result.report)
    sets = set(result.report["prompts"]["sets"])
    assert sets == {"chat", "code", "long", "math", "reasoning"}
