"""The whole gate against servers of every kind, over HTTP: lossless ones pass, each contract fault is seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from lossguard.config import SystemConfig
from lossguard.gate import rejudge, run_gate
from lossguard.gate_result import GateResult
from lossguard.plan import Plan
from lossguard.records import Evidence, Verdict
from lossguard.report.terminal import render_report
from tests.engines.servers.conftest import BUDGET, Bench
from tests.engines.servers.loopback import Loopback
from tests.engines.servers.spoken import REPLY_FAULTS, Asked, ReplyFault, Spoken, ToyModel, stripped_stop
from tests.gate.conftest import make_stack
from tests.gate.toy import Fault, bias_every_seventh, wrong_token

CAUGHT = {
    "cut_as_length": "structure",
    "early_stop": "event",
    "past_stop": "structure",
    "dropped_pair": "event",
    "repeated_token": "event",
    "id_out_of_range": "structure",
    "aborted": "structure",
    "other_prompt": "usage",
    "wrong_usage": "usage",
    "zero_logprobs": "logprob",
    "nan_logprobs": "logprob",
    "missing_logprobs": "logprob",
    "scaled_logprobs": "logprob",
    "positive_logprobs": "logprob",
    "shifted_logprobs": "logprob",
    "flat_top": "logprob",
    "fewer_top_rows": "logprob",
    "too_much_reasoning": "usage",
    "too_much_cached": "usage",
    "wrong_prompt_count": "usage",
    "doubled_chunk": "usage",
    "text_without_tail": "text",
    "unflushed_stream": "text",
    "doubled_text": "text",
    "other_text": "text",
    "missing_last_id": "structure",
}
ALONE = tuple(
    name for name, check in CAUGHT.items() if check in ("usage", "logprob", "text") and name != "doubled_chunk"
)
INSIDE = {"bias": ((bias_every_seventh(2.0),), "rate"), "rare": ((wrong_token(every=9),), "event")}


def other(*faults: ReplyFault, inside: tuple[Fault, ...] = ()) -> ToyModel:
    """Another batch composition, perhaps with faults."""
    return ToyModel(salt=1, faults=inside, reply_faults=faults)


@pytest.mark.parametrize(
    ("kind", "stream"),
    [
        ("sglang", True),
        ("vllm", True),
        ("llamacpp", True),
        pytest.param("sglang", False, marks=pytest.mark.slow),
        pytest.param("vllm", False, marks=pytest.mark.slow),
        pytest.param("llamacpp", False, marks=pytest.mark.slow),
    ],
)
def test_a_lossless_server_passes(bench: Bench, kind: str, *, stream: bool) -> None:
    with Loopback(kind) as stock, Loopback(kind, other(stripped_stop) if stream else other()) as candidate:
        result = bench.judge(kind, stock.url, candidate.url, stream=stream)
    assert result.verdict is Verdict.PASS, render_report(result.report)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GateResult]:
    """Every fault as a candidate of its own against one stock run."""
    models = {name: other(REPLY_FAULTS[name]) for name in CAUGHT}
    models |= {name: other(inside=inside) for name, (inside, _) in INSIDE.items()}
    with pytest.MonkeyPatch.context() as patch, ExitStack() as servers:
        stack = make_stack(tmp_path_factory.mktemp("faulty"), patch)
        urls = {name: servers.enter_context(Loopback("vllm", model)).url for name, model in models.items()}
        urls["stock"] = servers.enter_context(Loopback("vllm")).url
        systems = {name: SystemConfig(name=name, engine="vllm", options={"url": url}) for name, url in urls.items()}
        config = replace(stack.config, systems=systems)
        yield run_gate(Plan(config, candidates=list(models), budget=BUDGET, folder=stack.folder / "runs"))


def test_every_fault_of_a_reply_is_judged() -> None:
    assert {*CAUGHT, "stripped_stop"} == set(REPLY_FAULTS)


def evidence_of(result: GateResult, name: str) -> Evidence:
    return result.claim(f"{name}/lossless").evidence


@pytest.mark.parametrize(("fault", "check"), [*CAUGHT.items(), *((name, check) for name, (_, check) in INSIDE.items())])
def test_a_fault_fails_by_its_check(faulty: GateResult, fault: str, check: str) -> None:
    assert evidence_of(faulty, fault).check(check).verdict is Verdict.FAIL, render_report(faulty.report)


@pytest.mark.parametrize("fault", ALONE)
def test_a_fault_beside_the_tokens_is_seen_by_its_check_alone(faulty: GateResult, fault: str) -> None:
    checks = evidence_of(faulty, fault).checks
    assert [check.check for check in checks if check.verdict is not Verdict.PASS] == [CAUGHT[fault]]


def test_text_alone_never_passes_and_may_fail(bench: Bench) -> None:
    with (
        Loopback("openai") as stock,
        Loopback("openai", other()) as lossless,
        Loopback("openai", other(inside=(wrong_token(every=3),))) as wrong,
    ):
        urls = {"stock": stock.url, "lossless": lossless.url, "wrong": wrong.url}
        systems = {name: SystemConfig(name=name, engine="openai", options={"url": url}) for name, url in urls.items()}
        config = replace(bench.stack.config, systems=systems)
        folder = bench.stack.folder / "runs"
        result = run_gate(Plan(config, candidates=["lossless", "wrong"], budget=BUDGET, folder=folder))
    assert result.claim("lossless/lossless").verdict is Verdict.INCONCLUSIVE, render_report(result.report)
    checks = evidence_of(result, "lossless").checks
    assert [check.check for check in checks if check.verdict is not Verdict.PASS] == ["text", "usage"]
    assert result.claim("wrong/lossless").verdict is Verdict.FAIL
    again = rejudge(Path(result.run_folder))
    assert again.claim("lossless/lossless").verdict is Verdict.INCONCLUSIVE, "the mark is on disk"


def test_expectations_are_met_by_counters_of_the_whole_server(bench: Bench) -> None:
    def drafting(spoken: Spoken, _asked: Asked) -> Spoken:
        return replace(spoken, drafts=4, accepted=2)

    with Loopback("vllm") as stock, Loopback("vllm", other(drafting)) as candidate:
        options = {"url": candidate.url}
        met = run_gate(bench.plan("vllm", {"url": stock.url}, options, expect={"drafts": 840, "accepted": True}))
        unmet = run_gate(bench.plan("vllm", {"url": stock.url}, options, expect={"preempted": True}))
    assert evidence_of(met, "candidate").check("vacuity").verdict is Verdict.PASS, render_report(met.report)
    assert evidence_of(unmet, "candidate").check("vacuity").verdict is Verdict.INCONCLUSIVE
