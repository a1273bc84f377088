"""Strict mode end to end: deterministic stacks pass, one flipped token fails, bf16 in other batches fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from lossguard.engines.base import Capabilities
from lossguard.gate import load_plan, run_gate
from lossguard.gate_result import GateResult
from lossguard.records import CheckResult, Verdict
from lossguard.report.terminal import render_report
from tests.gate.conftest import Stack, make_stack
from tests.gate.toy import Step, ToyEngine, handle

FLIPPED_POSITION = 11


@dataclass
class Float32Engine(ToyEngine):
    """Noise as float32 leaves it: it depends on the batch, and changes no token."""

    noise_nats: float = 1e-6

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, logit_dtype="float32")


@dataclass
class FlipOne:
    """Serves another token than the best at one position of the first reply that is long enough."""

    request_id: str = ""

    def __call__(self, step: Step) -> None:
        """A fault of the toy engine."""
        if step.position == FLIPPED_POSITION and self.request_id in ("", step.request.id):
            self.request_id = step.request.id
            step.logits[int(step.logits.argmax())] = step.logits.min() - 1.0


def judged(stack: Stack, stock: ToyEngine, candidate: ToyEngine, *, strict: bool = True) -> GateResult:
    plan = stack.plan([handle("candidate", candidate)], stock=handle("stock", stock))
    return run_gate(replace(plan, strict=strict))


def strict_row(result: GateResult) -> CheckResult:
    return result.claim("candidate/lossless").evidence.check("strict")


@pytest.fixture(scope="module")
def shared_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with pytest.MonkeyPatch.context() as patch:
        yield make_stack(tmp_path_factory.mktemp("strict"), patch)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_float32_passes_at_any_batch_size(shared_stack: Stack, batch_size: int) -> None:
    target = shared_stack.target
    result = judged(shared_stack, Float32Engine(target), Float32Engine(target, batch_size=batch_size))
    assert strict_row(result).verdict is Verdict.PASS, render_report(result.report)
    assert result.verdict is Verdict.PASS, render_report(result.report)


def test_one_flipped_token_fails(shared_stack: Stack) -> None:
    target = shared_stack.target
    result = judged(shared_stack, Float32Engine(target), Float32Engine(target, faults=(FlipOne(),)))
    row = strict_row(result)
    assert row.verdict is Verdict.FAIL
    assert row.evidence["num_strict_mismatches"] == 1
    assert row.evidence["mismatches"][0]["position"] == FLIPPED_POSITION
    assert not any("not for this stack" in note for note in row.notes)
    assert result.verdict is Verdict.FAIL
    plain = judged(shared_stack, Float32Engine(target), Float32Engine(target, faults=(FlipOne(),)), strict=False)
    assert plain.verdict is not Verdict.FAIL, "it is strict that makes one token a failure"


def test_bfloat16_in_other_batches_fails_and_says_why(shared_stack: Stack) -> None:
    target = shared_stack.target
    result = judged(shared_stack, ToyEngine(target), ToyEngine(target, batch_size=5))
    row = strict_row(result)
    assert row.verdict is Verdict.FAIL
    assert row.evidence["num_stock_recomposed_strict_mismatches"] > 0
    assert row.notes[0].startswith("strict is not for this stack")
    others = [check for check in result.claim("candidate/lossless").evidence.checks if check.check != "strict"]
    assert {check.verdict for check in others} == {Verdict.PASS}


def test_a_batch_invariant_bfloat16_stack_passes(shared_stack: Stack) -> None:
    """Stock's own mismatches against the scorer are none of the candidate's."""
    target = shared_stack.target
    result = judged(shared_stack, ToyEngine(target, noise_nats=0.0), ToyEngine(target, noise_nats=0.0, batch_size=3))
    assert strict_row(result).verdict is Verdict.PASS


def test_strict_is_opt_in_and_kept_in_the_plan(shared_stack: Stack) -> None:
    target = shared_stack.target
    result = judged(shared_stack, ToyEngine(target), ToyEngine(target), strict=False)
    assert "strict" not in {check.check for check in result.claims[0].evidence.checks}
    assert load_plan(result.run_folder).strict is False
    again = judged(shared_stack, ToyEngine(target), ToyEngine(target))
    assert load_plan(again.run_folder).strict is True
