"""The gate at temperature > 0: exact samplers pass, others fail by the check of the distribution."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from lossguard.errors import UsageError
from lossguard.gate import load_plan, recheck, rejudge, run_gate
from lossguard.gate_result import GateResult
from lossguard.plan import Plan
from lossguard.records import SamplingParams, Verdict
from lossguard.report.json_report import load_schema
from lossguard.report.terminal import render_header, render_report
from tests.gate.conftest import Stack, make_stack
from tests.gate.sampled_toy import SampledEngine, SampledScorer, serve_exactly
from tests.gate.toy import Logits, ToyEngine, ToyTarget, handle


@pytest.fixture
def sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """The toy stack with a scorer of distributions."""
    stack = make_stack(tmp_path, monkeypatch)
    stack.scorer = SampledScorer(ToyTarget())
    return stack


def plan_of(stack: Stack, engine: ToyEngine, **parameters: float) -> Plan:
    stock = handle("stock", SampledEngine(stack.target))
    plan = stack.plan([handle("candidate", engine)], stock=stock, temperature=1.0)
    return replace(plan, config=replace(stack.config, parameters=parameters))


def judged(stack: Stack, engine: ToyEngine, **parameters: float) -> GateResult:
    return run_gate(plan_of(stack, engine, **parameters))


def cooled(logits: Logits, sampling: SamplingParams) -> Logits:
    return serve_exactly(logits, replace(sampling, temperature=0.8 * sampling.temperature))


def unfiltered(logits: Logits, sampling: SamplingParams) -> Logits:
    return serve_exactly(logits, replace(sampling, top_p=1.0))


def test_other_draws_from_the_same_distribution_pass(sampled: Stack) -> None:
    result = judged(sampled, SampledEngine(sampled.target, draws=1, batch_size=5))
    evidence = result.claims[0].evidence
    assert result.verdict is Verdict.PASS, render_report(result.report)
    assert {check.check for check in evidence.checks} >= {"sampling", "structure", "vacuity", "scores"}
    assert {check.check for check in evidence.checks}.isdisjoint({"rate", "event", "near-tie", "support"})
    assert any("greedy" in text for text in evidence.does_not_cover)
    assert evidence.power == {}
    jsonschema.Draft202012Validator(load_schema()).validate(json.loads(result.to_json()))
    assert rejudge(result.run_folder).verdict is Verdict.PASS
    assert load_plan(result.run_folder).effective_temperature == 1.0


def test_a_colder_temperature_fails(sampled: Stack) -> None:
    result = judged(sampled, SampledEngine(sampled.target, draws=1, law=cooled))
    check = result.claims[0].evidence.check("sampling")
    assert check.verdict is Verdict.FAIL
    assert check.evidence["temperature_error_fraction"] == pytest.approx(-0.2, abs=0.06)
    assert "too cold" in check.summary
    assert result.claims[0].evidence.diagnosis is None, "gaps of sampled tokens are no errors"
    assert not (result.run_folder / "candidate" / "audit.jsonl").exists(), "nor events to audit"
    assert "NOT LOSSLESS" in render_report(result.report)


def test_a_filter_that_is_not_applied_fails_by_support(sampled: Stack) -> None:
    result = judged(sampled, SampledEngine(sampled.target, draws=1, law=unfiltered), top_p=0.8)
    evidence = result.claims[0].evidence
    assert evidence.check("support").verdict is Verdict.FAIL
    example = evidence.examples[0]
    assert example["kind"] == "mismatch"
    looked = recheck(result.run_folder, request_id=example["request_id"], position=example["position"])
    assert looked.served_id == example["served_id"]
    assert looked.sampling is not None
    assert not looked.sampling.is_allowed
    assert looked.sampling.outside_nats is not None
    assert looked.sampling.outside_nats > 0


def test_the_filter_applied_passes(sampled: Stack) -> None:
    result = judged(sampled, SampledEngine(sampled.target, draws=2), top_p=0.8)
    evidence = result.claims[0].evidence
    assert evidence.check("support").verdict is Verdict.PASS
    assert evidence.check("sampling").verdict is not Verdict.FAIL


def test_a_scorer_without_distributions_decides_nothing(stack: Stack) -> None:
    result = judged(stack, SampledEngine(stack.target, draws=1))
    check = result.claims[0].evidence.check("sampling")
    assert check.verdict is Verdict.INCONCLUSIVE
    assert "gives no distributions" in check.summary


def test_the_temperature_comes_from_the_plan_else_the_configuration(stack: Stack) -> None:
    config = replace(stack.config, temperature=0.7)
    plan = Plan(config, baseline=handle("stock", ToyEngine(stack.target)))
    assert plan.effective_temperature == 0.7
    assert replace(plan, temperature=0.0).effective_temperature == 0.0
    with pytest.raises(UsageError, match="between 0 and 10"):
        replace(plan, temperature=11.0)
    with pytest.raises(UsageError, match="strict compares greedy replies"):
        replace(plan, strict=True)


def test_the_header_says_that_replies_are_sampled() -> None:
    limits = {"num_requests": 60, "num_tokens": 9, "q_nats": 0.1, "delta_median_nats": 0.1, "delta_max_nats": 0.1,
              "event_nats": 1.0, "margin": 0.005}  # fmt: skip
    head = {"version": "0", "stock": "stock", "candidates": ["a"], "model": "m", "seed": 1, "temperature": 0.7,
            "thresholds": limits, "power": {}}  # fmt: skip
    assert "sampled replies at temperature 0.7" in render_header(head)


def test_the_law_of_the_toy_is_what_it_says() -> None:
    law = serve_exactly(np.log(np.array([0.5, 0.3, 0.2])), SamplingParams(max_tokens=1, temperature=1.0, top_p=0.6))
    assert law == pytest.approx([0.625, 0.375, 0.0])
