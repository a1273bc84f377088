"""Real servers judged by the whole gate: what is lossless passes, and each natural loss is found by the check for it.

Two stocks: vLLM in float32, beside which other engines, speculation and bfloat16 are put; and llama.cpp in float32,
beside its own speculation and its own quantisation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from lossguard.config import Config, PromptsConfig, ScorerConfig, SystemConfig
from lossguard.gate import run_gate
from lossguard.gate_result import GateResult
from lossguard.plan import Budget, Plan
from lossguard.records import Verdict
from lossguard.report.terminal import render_report
from tests.servers.fleet import CHUNK, ROOT, Fleet
from tests.servers.short_prompts import write_prompts

pytestmark = pytest.mark.servers
WHOLE: Final = Budget(name="servers", num_requests=204, max_tokens=16, num_calibration=20)
"""The least that passes: in float32 stock has no mismatch, the margin is 0.1 points, and a PASS takes 200 clusters and
no mismatch in 3,000 tokens (the upper bound is then 0.09983 points)."""
SHORT: Final = Budget(name="servers-short", num_requests=32, max_tokens=16, num_calibration=20)
"""Enough to find what departs everywhere."""
DRAFTED: Final = {"drafts": True, "accepted": True}
CHOICES: Final = ("rate", "event", "near-tie", "burst", "buckets")  # checks that look at which tokens were served


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One candidate and what must come of it."""

    server: str
    run: str  # stock and budget
    expect: dict[str, Any] = field(default_factory=dict)
    exercise: dict[str, Any] = field(default_factory=dict)
    logprobs: int = 1
    fails: tuple[str, ...] = ()  # checks that must FAIL
    may_fail: tuple[str, ...] = ()  # those that may FAIL beside them


RUNS: Final = {
    "vllm": ("vllm", WHOLE),
    "vllm-short": ("vllm", SHORT),
    "llamacpp": ("llamacpp", WHOLE),
    "llamacpp-short": ("llamacpp", SHORT),
}
CASES: Final = {
    "vllm-ngram": Case(
        server="vllm-ngram",
        run="vllm",
        expect={**DRAFTED, "preempted": True},
        exercise={"preemption": True, "chunked_prefill": CHUNK},
    ),
    "sglang": Case(server="sglang", run="vllm"),
    # Its attention on CPUs ignores the tree mask: some log-probabilities, and few tokens, are of other contexts.
    "sglang-ngram": Case(server="sglang-ngram", run="vllm", expect=DRAFTED, fails=("logprob",), may_fail=CHOICES),
    "vllm-bf16": Case(server="vllm-bf16", run="vllm-short", fails=("rate", "logprob"), may_fail=CHOICES),
    "ngram": Case(server="llamacpp-ngram", run="llamacpp", expect=DRAFTED, logprobs=0),
    # llama.cpp gives no log-probabilities for tokens that were verified beside a draft.
    "ngram-logprobs": Case(server="llamacpp-ngram", run="llamacpp-short", expect=DRAFTED, fails=("logprob",)),
    # The weights that the float32 file was made from, multiplied with activations of eight bits.
    "q4": Case(server="llamacpp-q4", run="llamacpp-short", logprobs=0, fails=("rate",), may_fail=CHOICES),
}


@pytest.fixture(scope="module")
def gates() -> dict[str, GateResult]:
    """Runs by name, filled as they are asked for."""
    return {}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of both budgets: some are left over."""
    return write_prompts(tmp_path_factory.mktemp("prompts") / "short.jsonl", 230)


def judged(run: str, fleet: Fleet, model: str, prompts: Path) -> GateResult:
    """One run of a stock, and its candidates against it."""
    stock, budget = RUNS[run]
    candidates = {name: case for name, case in CASES.items() if case.run == run}
    fleet.launch([stock, *(case.server for case in candidates.values())])
    systems = [_system("stock", fleet.table(stock), Case(server=stock, run=run, logprobs=int(stock == "vllm")))]
    systems += [_system(name, fleet.table(case.server), case) for name, case in candidates.items()]
    config = Config(
        model=model,
        systems={system.name: system for system in systems},
        scorer=ScorerConfig(options={"dtype": "float32", "device": "cpu"}),
        prompts=PromptsConfig(sets=(str(prompts),)),
    )
    return run_gate(Plan(config, candidates=list(candidates), budget=budget, folder=ROOT / ".lossguard"))


def _system(name: str, table: dict[str, Any], case: Case) -> SystemConfig:
    options = {**{key: value for key, value in table.items() if key != "engine"}, "logprobs": case.logprobs}
    return SystemConfig(name=name, engine=table["engine"], expect=case.expect, exercise=case.exercise, options=options)


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_and_the_check_behind_it(
    fleet: Fleet, model: str, prompts: Path, gates: dict[str, GateResult], name: str
) -> None:
    case = CASES[name]
    if case.run not in gates:
        gates[case.run] = judged(case.run, fleet, model, prompts)
    result = gates[case.run]
    claim = result.claim(f"{name}/lossless")
    assert claim.verdict is (Verdict.FAIL if case.fails else Verdict.PASS), render_report(result.report)
    failed = {check.check for check in claim.evidence.checks if check.verdict is Verdict.FAIL}
    assert set(case.fails) <= failed <= {*case.fails, *case.may_fail}, render_report(result.report)
