"""Faults of the contract in a tiny model: each is seen by the check that is named for it, and stock by none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from lossguard.checks.base import Arm, Check, CheckInput, has_evidence
from lossguard.checks.registry import builtin_checks
from lossguard.records import FinishReason, Request, ServedOutput, Usage, Verdict
from lossguard.scoring.base import ScoringJob
from lossguard.scoring.spec import TorchScorerSpec
from lossguard.scoring.torch_scorer import TorchScorer, create_torch_scorer
from lossguard_suites.adversarial.faults import PLANTED, Fault
from tests.checks.simulated_arms import thresholds
from tests.suites.tiny_faults import FIRM, VOCAB_SIZE, requests_for, serve

CONTRACT = ("usage", "text", "logprob", "parameters")
BY_NAME = pytest.mark.parametrize(
    "planted", [item for item in PLANTED if set(item.seen_by) & set(CONTRACT)], ids=lambda item: item.name
)


@pytest.fixture(scope="module")
def scorer(tiny_path: str) -> TorchScorer:
    return create_torch_scorer(TorchScorerSpec(model_path=tiny_path, device="cpu"))


def arms(
    scorer: TorchScorer, requests: Sequence[Request], candidate: Sequence[ServedOutput], stock: Sequence[ServedOutput]
) -> CheckInput:
    """Both systems scored along one prefix tree, as the gate does it."""
    jobs = [
        ScoringJob(request=request, outputs=(ours, theirs))
        for request, ours, theirs in zip(requests, candidate, stock, strict=True)
    ]
    scores = scorer.score(jobs)
    mine, other = (
        Arm(name=name, outputs=outputs, scores=column, decoded=[shown(output) for output in outputs])
        for name, outputs, column in zip(("candidate", "stock"), (candidate, stock), scores, strict=True)
    )
    return CheckInput(
        requests=requests,
        stock=other,
        candidate=mine,
        thresholds=thresholds(logprob_nats=0.01),
        calibration_requests=requests,
        calibration=other,
        expect={},
        vocab_size=VOCAB_SIZE,
        seed=1,
    )


def shown(output: ServedOutput) -> str:
    """Text of the ids; the last token is left out where it stopped the reply, as servers do."""
    ids = output.ids[:-1] if output.finish_reason is FinishReason.STOP else output.ids
    return " ".join(f"w{token}" for token in ids)


def complete(request: Request, output: ServedOutput) -> ServedOutput:
    """With the text and counters that an honest server reports."""
    usage = Usage(prompt_tokens=len(request.prompt_ids), completion_tokens=len(output.ids))
    return replace(output, text=shown(output), usage=usage)


def served(path: str, planted: Fault, requests: Sequence[Request], *, is_faulty: bool) -> list[ServedOutput]:
    """Replies with honest reports, but for what the fault reports wrongly."""
    firm = FIRM.get(planted.name, {})
    options = planted.options(**firm) if is_faulty else {}
    plain = [complete(*pair) for pair in zip(requests, serve(path, requests, {}), strict=True)]
    if not is_faulty:
        return plain
    if planted.name == "cut-text":  # this engine has no text of its own that could be cut
        from lossguard_suites.adversarial.faults.wrong_reports import cut_text

        return [cut_text(output, request) for request, output in zip(requests, plain, strict=True)]
    faulty = serve(path, requests, options)
    return [
        replace(complete(request, output), usage=output.usage or complete(request, output).usage)
        for request, output in zip(requests, faulty, strict=True)
    ]


def failed(run: CheckInput) -> set[str]:
    """Names of the contract checks that fail."""
    named: list[Check] = [check for check in builtin_checks() if check.name in (*CONTRACT, "structure")]
    looked_at = [check for check in named if check.applies(run.requests) and has_evidence(check, run)]
    return {check.name for check in looked_at if check.run(run).verdict is Verdict.FAIL}


@BY_NAME
def test_it_is_seen_by_its_check_alone(planted: Fault, tiny_path: str, scorer: TorchScorer) -> None:
    requests = requests_for(planted)
    stock = served(tiny_path, planted, requests, is_faulty=False)
    run = arms(scorer, requests, served(tiny_path, planted, requests, is_faulty=True), stock)
    seen = failed(run)
    assert seen & set(planted.seen_by)
    assert not seen & set(planted.missed_by)
    assert seen <= {*planted.seen_by}


@BY_NAME
def test_stock_is_seen_by_none_and_parameters_are_tested(planted: Fault, tiny_path: str, scorer: TorchScorer) -> None:
    requests = requests_for(planted)
    stock = served(tiny_path, planted, requests, is_faulty=False)
    run = arms(scorer, requests, stock, stock)
    assert failed(run) == set()
    if planted.asks:
        (check,) = [check for check in builtin_checks() if check.name == "parameters"]
        assert check.run(run).verdict is Verdict.PASS, check.run(run)
