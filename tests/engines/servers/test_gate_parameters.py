"""The whole gate over HTTP with parameters in every request: honoured ones pass, each kind of neglect is seen."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lossguard.config import SystemConfig
from lossguard.gate import rejudge, run_gate
from lossguard.gate_result import GateResult
from lossguard.plan import Budget, Plan
from lossguard.records import Verdict
from lossguard.report.terminal import render_report
from lossguard.request_parameters import request_parameters
from tests.engines.servers.conftest import BUDGET
from tests.engines.servers.loopback import Loopback
from tests.engines.servers.replaying_scorer import ReplayingScorer
from tests.engines.servers.spoken import ASKED_FAULTS, ToyModel
from tests.gate.conftest import make_stack
from tests.gate.toy import ToyScorer, ToyTarget

MASK = {str(token): -100.0 for token in range(1, 20)}
PENALTIES: Mapping[str, Any] = {
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.4,
    "logit_bias": MASK,
}
EAGER_STOP = {"logit_bias": {"0": 4.0}}


@dataclass(frozen=True)
class Asking:
    """What every request asks for, and the check that sees each neglect of it."""

    parameters: Mapping[str, Any]
    caught: Mapping[str, str]


ROUNDS = {
    "penalties": Asking(
        {**PENALTIES, "stop_strings": ["77 w", "88 w"]},
        {
            "forgets_penalties": "parameters",
            "counts_one_in_four": "parameters",
            "skips_the_mask_of_the_bonus": "parameters",
            "forgets_stop_strings": "stop",
            "stops_after_the_block": "stop",
        },
    ),
    "minimum": Asking(
        {"min_tokens": 10, **EAGER_STOP},
        {"forgets_min_tokens": "structure", "counts_steps_for_min_tokens": "stop"},
    ),
    "ignored": Asking({"ignore_eos": True, **EAGER_STOP}, {"forgets_ignore_eos": "stop"}),
}
CASES = [(name, fault, check) for name, asking in ROUNDS.items() for fault, check in asking.caught.items()]


def judged(folder: Path, asking: Asking, scorer: ToyScorer, budget: Budget = BUDGET) -> GateResult:
    """A lossless candidate and one per fault, against one stock, all asked the same."""
    models = {"lossless": ToyModel(salt=1)}
    models |= {name: ToyModel(salt=1, asked_faults=(ASKED_FAULTS[name],)) for name in asking.caught}
    with pytest.MonkeyPatch.context() as patch, ExitStack() as servers:
        stack = make_stack(folder, patch)
        stack.scorer = scorer
        urls = {name: servers.enter_context(Loopback("vllm", model)).url for name, model in models.items()}
        urls["stock"] = servers.enter_context(Loopback("vllm")).url
        options = {"logit_dtype": "bfloat16"}
        systems = {
            name: SystemConfig(name=name, engine="vllm", options={"url": url, **options}) for name, url in urls.items()
        }
        config = replace(stack.config, systems=systems, parameters=request_parameters(asking.parameters))
        return run_gate(Plan(config, candidates=list(models), budget=budget, folder=stack.folder / "runs"))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GateResult]:
    return {
        name: judged(tmp_path_factory.mktemp(name), asking, ReplayingScorer(ToyTarget()))
        for name, asking in ROUNDS.items()
    }


@pytest.mark.parametrize("name", list(ROUNDS))
def test_a_lossless_server_passes_with_parameters(results: dict[str, GateResult], name: str) -> None:
    result = results[name]
    assert result.claim("lossless/lossless").verdict is Verdict.PASS, render_report(result.report)
    covered = " ".join(result.claim("lossless/lossless").evidence.covers)
    assert "parameters:" in covered
    assert "stop:" in covered


@pytest.mark.parametrize(("name", "fault", "check"), CASES)
def test_a_neglect_fails_by_its_check(results: dict[str, GateResult], name: str, fault: str, check: str) -> None:
    claim = results[name].claim(f"{fault}/lossless")
    assert claim.verdict is Verdict.FAIL
    assert claim.evidence.check(check).verdict is Verdict.FAIL, render_report(results[name].report)


@pytest.mark.parametrize(("fault", "name"), [("stops_after_the_block", "penalties"), ("forgets_ignore_eos", "ignored")])
def test_a_stop_that_is_wrong_alone_is_reported_once(results: dict[str, GateResult], fault: str, name: str) -> None:
    checks = results[name].claim(f"{fault}/lossless").evidence.checks
    failed = {check.check for check in checks if check.verdict is Verdict.FAIL}
    assert failed & {"stop", "structure", "parameters"} == {"stop"}


def test_every_neglect_is_judged() -> None:
    assert {fault for _, fault, _ in CASES} == set(ASKED_FAULTS)


def test_the_parameters_are_on_disk(results: dict[str, GateResult]) -> None:
    result = results["penalties"]
    folder = result.run_folder
    assert folder is not None
    again = rejudge(folder)
    assert [claim.verdict for claim in again.claims] == [claim.verdict for claim in result.claims]
    assert '"repetition_penalty": 1.2' in (folder / "requests.jsonl").read_text()
    assert '"repetition_penalty": 1.2' not in (folder / "calibration-requests.jsonl").read_text()


def test_a_scorer_that_replays_nothing_gives_no_pass(tmp_path: Path) -> None:
    few = Budget(name="few", num_requests=20, max_tokens=12, num_calibration=20)
    result = judged(tmp_path, Asking(PENALTIES, {}), ToyScorer(ToyTarget()), few)
    claim = result.claim("lossless/lossless")
    assert claim.verdict is Verdict.INCONCLUSIVE
    assert claim.evidence.check("parameters").summary.startswith("the scorer does not replay")
