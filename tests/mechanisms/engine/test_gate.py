"""The whole gate on the committed hybrid: plain decoding and chains, with one, eight and 32 requests at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from lossguard import Plan, load_config, run_gate

ROOT = Path(__file__).parents[3]


BUDGET, SEED = "300x32x80", 23  # a seed at which all five sets are among the test prompts: long ones are one cluster


@pytest.mark.slow
def test_plain_decoding_and_chains_are_lossless_in_any_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # drafters are named from there
    config = load_config(ROOT / "benchmarks" / "embedded_gate.toml")
    plan = Plan(config, candidates=("ar", "dflash2"), budget=BUDGET, seed=SEED, folder=tmp_path)
    result = run_gate(plan)
    found = {claim.candidate: claim.verdict.name for claim in result.claims}
    assert found == {"ar": "PASS", "dflash2": "PASS"}
