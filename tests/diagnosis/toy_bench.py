"""The toy stack without files: serve, score, audit, judge and diagnose one scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import Arm, CheckInput, Thresholds
from lossguard.checks.calibrate import CalibrationInput, calibrate
from lossguard.checks.events import unaudited_events
from lossguard.checks.registry import builtin_checks
from lossguard.diagnosis.diagnose import diagnose
from lossguard.records import AuditedEvent, Diagnosis, Request, SamplingParams, ServedOutput, Verdict
from lossguard.scoring.base import ScoringJob
from tests.diagnosis.toy_faults import MAX_TOKENS, Scenario
from tests.gate.toy import STOP_ID, VOCAB_SIZE, Logits, ToyEngine, ToyScorer, ToyTarget


class StoppingTarget(ToyTarget):
    """The toy target with a stop token that ends about half of the replies."""

    def logits(self, ids: Sequence[int]) -> Logits:
        """Exact logits after ``ids``."""
        logits = super().logits(ids)
        logits[STOP_ID] += 6.0
        return logits


def toy_requests(number: int, prefix: str, seed: int) -> tuple[Request, ...]:
    """Greedy requests of random ids, in three sets."""
    rng = np.random.default_rng(seed)
    sampling = SamplingParams(max_tokens=MAX_TOKENS, stop_ids=(STOP_ID,), logprobs=5)
    return tuple(
        Request(
            id=f"{prefix}{index:04d}",
            prompt_ids=tuple(int(token) for token in rng.integers(1, VOCAB_SIZE, rng.integers(4, 12))),
            sampling=sampling,
            set=("chat", "code", "math")[index % 3],
            cluster=f"{prefix}{index:04d}",
        )
        for index in range(number)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Stock's side of every comparison, made once."""

    target: ToyTarget
    requests: tuple[Request, ...]
    stock: Arm
    calibration_requests: tuple[Request, ...]
    calibration: Arm
    thresholds: Thresholds

    def judge(self, scenario: Scenario) -> tuple[Verdict, Diagnosis]:
        """The verdict of all checks, and what the diagnosis would say of a FAIL."""
        engine = ToyEngine(self.target, faults=scenario.faults, finish=scenario.finish, batch_size=6)
        arm = scored("candidate", engine, self.requests)
        arm = Arm(name=arm.name, outputs=arm.outputs, scores=arm.scores, audit=self._audit(arm))
        given = CheckInput(
            requests=self.requests,
            stock=self.stock,
            candidate=arm,
            thresholds=self.thresholds,
            calibration_requests=self.calibration_requests,
            calibration=self.calibration,
            expect={},
            vocab_size=VOCAB_SIZE,
            seed=17,
        )
        results = [check.run(given) for check in builtin_checks() if check.applies(self.requests)]
        return Verdict.combine([result.verdict for result in results]), diagnose(given, results)

    def _audit(self, arm: Arm) -> tuple[AuditedEvent, ...]:
        """Stock's own choice at each event, alone."""
        stock, audited = ToyEngine(self.target), []
        for index, events in unaudited_events(arm, self.thresholds):
            request, ids = self.requests[index], arm.outputs[index].ids
            for event in events:
                prefix = [*request.prompt_ids, *ids[: event.position]]
                token = int(np.argmax(stock._served_logits(prefix, request, 0, 1)))
                audited.append(_decided(event, token))
        return tuple(audited)


def _decided(event: AuditedEvent, token: int) -> AuditedEvent:
    data = {**event.to_json(), "explained": token == event.served_id, "replays": {"alone": token}}
    return AuditedEvent.from_json(data)


def scored(name: str, engine: ToyEngine, requests: Sequence[Request]) -> Arm:
    """Served and scored."""
    outputs: list[ServedOutput] = list(engine.serve(requests))
    jobs = [ScoringJob(request=request, outputs=(output,)) for request, output in zip(requests, outputs, strict=True)]
    return Arm(name=name, outputs=outputs, scores=ToyScorer(engine.target).score(jobs)[0])


def make_bench(num_requests: int = 220, seed: int = 1) -> Bench:
    """Serve stock, calibrate."""
    target = StoppingTarget()
    tests, prompts = toy_requests(num_requests, "t", seed), toy_requests(60, "c", seed + 1)
    calibration = scored("stock", ToyEngine(target), prompts)
    recomposed = scored("stock recomposed", ToyEngine(target, batch_size=5), prompts)
    thresholds = calibrate(
        CalibrationInput(
            requests=prompts, stock=calibration, recomposed=recomposed, rescored=None, logit_dtype="bfloat16", seed=3
        )
    )
    return Bench(
        target=target,
        requests=tests,
        stock=scored("stock", ToyEngine(target), tests),
        calibration_requests=prompts,
        calibration=calibration,
        thresholds=thresholds,
    )
