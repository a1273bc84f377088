"""Real servers judged by the whole gate: what is lossless passes, and each natural loss is found by the check for it.

Two stocks: vLLM in float32, beside which other engines, speculation and bfloat16 are put; and llama.cpp in float32,
beside its own speculation and its own quantisation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
BUDGET = Budget(name="servers", num_requests=204, max_tokens=16, num_calibration=30)
"""The least that decides: in float32 stock has no mismatch, the margin is 0.1 points, and a PASS takes 200 clusters and
no mismatch in 3,000 tokens (the upper bound is then 0.09983 points)."""
DRAFTED = {"drafts": True, "accepted": True}
CHOICES = ("rate", "event", "near-tie", "burst", "buckets")  # checks that look at which tokens were served


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One candidate and what must come of it."""

    stock: str
    table: Callable[[Path], dict[str, Any]]  # from the float32 model file of llama.cpp
    expect: dict[str, Any] = field(default_factory=dict)
    fails: tuple[str, ...] = ()  # checks that must FAIL
    may_fail: tuple[str, ...] = ()  # those that may FAIL beside them


STOCKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "vllm": lambda _gguf: vllm(),
    "llamacpp": lambda gguf: llamacpp(gguf, logprobs=0),
}
CASES = {
    "vllm-ngram": Case(stock="vllm", table=lambda _gguf: NGRAM["vllm"], expect=DRAFTED),
    "sglang": Case(stock="vllm", table=lambda _gguf: sglang()),
    # Its attention on CPUs ignores the tree mask: some log-probabilities, and few tokens, are of other contexts.
    "sglang-ngram": Case(
        stock="vllm", table=lambda _gguf: NGRAM["sglang"], expect=DRAFTED, fails=("logprob",), may_fail=CHOICES
    ),
    "vllm-bf16": Case(
        stock="vllm", table=lambda _gguf: vllm(dtype="bfloat16"), fails=("rate", "logprob"), may_fail=CHOICES
    ),
    "ngram": Case(stock="llamacpp", table=lambda gguf: llamacpp(gguf, *LLAMA_NGRAM, logprobs=0), expect=DRAFTED),
    # llama.cpp gives no log-probabilities for tokens that were verified beside a draft.
    "ngram-logprobs": Case(
        stock="llamacpp", table=lambda gguf: llamacpp(gguf, *LLAMA_NGRAM), expect=DRAFTED, fails=("logprob",)
    ),
    # The weights that the float32 file was made from, multiplied with activations of eight bits.
    "q4": Case(
        stock="llamacpp", table=lambda _gguf: llamacpp(_packaged_gguf(), logprobs=0), fails=("rate",), may_fail=CHOICES
    ),
}


@pytest.fixture(scope="module")
def vllm_gate(model: str, f32_gguf: Path) -> GateResult:
    """Every candidate that vLLM is the stock of."""
    return judged("vllm", model, f32_gguf)


@pytest.fixture(scope="module")
def llamacpp_gate(model: str, f32_gguf: Path) -> GateResult:
    """Every candidate that llama.cpp is the stock of."""
    return judged("llamacpp", model, f32_gguf)


def judged(stock: str, model: str, gguf: Path) -> GateResult:
    """One run of a stock, and every candidate that has it against it."""
    candidates = {name: case for name, case in CASES.items() if case.stock == stock}
    systems = [_system("stock", STOCKS[stock](gguf), {})]
    systems += [_system(name, case.table(gguf), case.expect) for name, case in candidates.items()]
    config = Config(
        model=model,
        systems={system.name: system for system in systems},
        scorer=ScorerConfig(options={"dtype": "float32", "device": "cpu"}),
        prompts=PromptsConfig(sets=("demo",)),
    )
    return run_gate(Plan(config, candidates=list(candidates), budget=BUDGET, folder=ROOT / ".lossguard"))


def _system(name: str, table: dict[str, Any], expect: dict[str, Any]) -> SystemConfig:
    options = {key: value for key, value in table.items() if key != "engine"}
    return SystemConfig(name=name, engine=table["engine"], expect=expect, options=options)


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_and_the_check_behind_it(request: pytest.FixtureRequest, name: str) -> None:
    case = CASES[name]
    result: GateResult = request.getfixturevalue(f"{case.stock}_gate")
    claim = result.claim(f"{name}/lossless")
    assert claim.verdict is (Verdict.FAIL if case.fails else Verdict.PASS), render_report(result.report)
    failed = {check.check for check in claim.evidence.checks if check.verdict is Verdict.FAIL}
    assert set(case.fails) <= failed <= {*case.fails, *case.may_fail}, render_report(result.report)
