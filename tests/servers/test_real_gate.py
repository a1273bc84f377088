"""Real servers judged by the whole gate: speculation and other engines pass in float32, rounded weights fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lossguard.config import Config, PromptsConfig, ScorerConfig, SystemConfig
from lossguard.gate import run_gate
from lossguard.gate_result import GateResult
from lossguard.models import _packaged_gguf
from lossguard.plan import Budget, Plan
from lossguard.records import Verdict
from lossguard.report.terminal import render_report
from tests.servers.conftest import LLAMA_NGRAM, NGRAM, ROOT, llamacpp, sglang, vllm

pytestmark = pytest.mark.servers
DRAFTED = {"drafts": True, "accepted": True}
EXPECTED = {
    "vllm-ngram": Verdict.PASS,
    "sglang": Verdict.PASS,
    "llamacpp": Verdict.PASS,
    "llamacpp-ngram": Verdict.PASS,
    "llamacpp-q4": Verdict.FAIL,
}
MAX_TOKENS = int(os.environ.get("LOSSGUARD_SERVERS_TOKENS", "20"))
"""In float32 stock has no mismatch and the margin is 0.1 points: no mismatch in 3,000 tokens is what a PASS takes."""
BUDGET = Budget(name="servers", num_requests=205, max_tokens=MAX_TOKENS, num_calibration=40)


@pytest.fixture(scope="module")
def result(model: str, f32_gguf: Path) -> GateResult:
    """One stock run of vLLM, and every candidate against it."""
    tables = {
        "stock": (vllm(), {}),
        "vllm-ngram": (NGRAM["vllm"], DRAFTED),
        "sglang": (sglang(), {}),
        "llamacpp": (llamacpp(f32_gguf), {}),
        "llamacpp-ngram": (llamacpp(f32_gguf, *LLAMA_NGRAM), DRAFTED),
        "llamacpp-q4": (llamacpp(_packaged_gguf()), {}),
    }
    systems = {
        name: SystemConfig(
            name=name,
            engine=table["engine"],
            expect=expect,
            options={key: value for key, value in table.items() if key != "engine"},
        )
        for name, (table, expect) in tables.items()
    }
    config = Config(
        model=model,
        systems=systems,
        scorer=ScorerConfig(options={"dtype": "float32", "device": "cpu"}),
        prompts=PromptsConfig(sets=("demo",)),
    )
    return run_gate(Plan(config, candidates=list(EXPECTED), budget=BUDGET, folder=ROOT / ".lossguard"))


@pytest.mark.parametrize(("name", "verdict"), EXPECTED.items())
def test_the_verdict(result: GateResult, name: str, verdict: Verdict) -> None:
    assert result.claim(f"{name}/lossless").verdict is verdict, render_report(result.report)
