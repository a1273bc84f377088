"""A candidate that ruins the scorer, or stock, for both arms alike: no check that compares them would see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from lossguard.gate import rejudge, run_gate
from lossguard.records import ForcedScores, Request, ServedOutput, Verdict
from lossguard.scoring.base import ScoringJob
from tests.gate.conftest import Stack
from tests.gate.toy import Logits, Step, ToyEngine, ToyScorer, ToyTarget, handle


class PatchedTarget(ToyTarget):
    """What a library that swaps kernels on import leaves behind."""

    strength: float

    def logits(self, ids: Sequence[int]) -> Logits:
        out = np.array(super().logits(ids))
        out[7::7] += self.strength
        return out


@dataclass
class PatchingEngine(ToyEngine):
    """Changes the code that the scorer of this process uses, as soon as it serves."""

    stack: Stack | None = None
    strength: float = 2.0

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        assert self.stack is not None
        patched = PatchedTarget()
        patched.strength = self.strength
        self.target = self.stack.scorer.target = patched
        yield from super().serve(requests)


@pytest.mark.parametrize("strength", [0.3, 2.0])
def test_a_candidate_that_patches_the_scorer_does_not_pass(stack: Stack, strength: float) -> None:
    result = stack.judge(PatchingEngine(stack.target, stack=stack, strength=strength))
    assert result.verdict is Verdict.INCONCLUSIVE
    reasons = {check.check: check.summary for check in result.claims[0].evidence.checks}
    assert "the scorer changed since calibration" in reasons["rate"]
    assert rejudge(result.run_folder).verdict is Verdict.INCONCLUSIVE, "and it stays so when judged again"


@dataclass
class PaddedScorer(ToyScorer):
    """All logits of a position move with the batch that it is scored in, as bfloat16 hidden states do."""

    def score(self, jobs: Sequence[ScoringJob], *, progress: Callable[[int], None] | None = None) -> list[ForcedScores]:
        shift = np.float32(2.0 * (len(jobs) > 10))
        return [
            replace(arm, best_logit=arm.best_logit + shift, top_logits=arm.top_logits + shift)
            for arm in super().score(jobs, progress=progress)
        ]


def test_batches_that_move_all_logits_alike_are_no_change_of_the_scorer(stack: Stack) -> None:
    stack.scorer = PaddedScorer(stack.target)
    result = stack.judge(ToyEngine(stack.target, batch_size=5))
    assert result.verdict is Verdict.PASS, [check.summary for check in result.claims[0].evidence.checks]


def test_a_stock_that_got_worse_after_calibration_does_not_pass(stack: Stack) -> None:
    def fault(step: Step) -> None:
        if int(step.request.id[1:].split("#")[0]) not in calibrated and step.position % 3 == 0:
            step.logits[7::7] += 2.0

    calibrated: set[int] = set()
    first = run_gate(stack.plan([handle("candidate", ToyEngine(stack.target))]))
    assert first.verdict is Verdict.PASS
    for path in first.run_folder.rglob("calibration-outputs.jsonl"):
        calibrated |= {int(line.split('"p')[1][:4]) for line in path.read_text().splitlines()}
    engines = [ToyEngine(stack.target, faults=(fault,)) for _ in range(2)]
    result = run_gate(stack.plan([handle("candidate", engines[1])], stock=handle("stock", engines[0])))
    reasons = {check.check: check.summary for check in result.claims[0].evidence.checks}
    assert result.verdict is Verdict.INCONCLUSIVE, reasons
    assert "stock is not what was calibrated" in reasons["vacuity"]
