"""The live selftest: which systems it judges, how it deals them out, and what it makes of the claims."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from lossguard.engines.base import EngineSpec
from lossguard.engines.transformers_options import parse_options
from lossguard.gate_result import GateResult
from lossguard.listener import SilentListener
from lossguard.plan import Plan
from lossguard.records import CheckResult, Claim, Evidence, Verdict
from lossguard.selftest.base import SelftestOptions
from lossguard_suites.adversarial import live
from lossguard_suites.adversarial.faults import CONTROLS, FAULTS, PENDING, PLANTED, fault
from lossguard_suites.adversarial.findings import finding_of, part_of

SIZES = {
    "num_tokens_candidate": 1000,
    "num_mismatches_candidate": 8,
    "num_tokens_stock": 1000,
    "num_mismatches_stock": 2,
}


@pytest.fixture(autouse=True)
def model_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "default_model_path", lambda: Path("the-model"))


def claim_of(name: str, verdict: Verdict, **checks: Verdict) -> Claim:
    results = tuple(
        CheckResult(check=check.replace("_", "-"), verdict=value, summary="") for check, value in checks.items()
    )
    return Claim(
        id=f"{name}/lossless",
        candidate=name,
        baseline="stock",
        verdict=verdict,
        evidence=Evidence(checks=results, sizes=SIZES),
    )


def right_claim(name: str) -> Claim:
    planted = fault(name)
    if planted.is_control:
        return claim_of(name, Verdict.PASS, rate=Verdict.PASS)
    return claim_of(name, Verdict.FAIL, **{planted.seen_by[0].replace("-", "_"): Verdict.FAIL})


def test_ci_judges_eight_of_both_kinds() -> None:
    names = [name for current in live.QUICK for name in current.faults]
    assert len(names) == 8
    assert {fault(name).is_control for name in live.QUICK_CONTROLS} == {True}
    assert {fault(name).is_control for name in live.QUICK_FAULTS} == {False}
    assert live.QUICK[0].budget.num_requests >= 200  # fewer clusters never pass
    assert len({fault(name).family for name in live.QUICK_FAULTS}) >= 3


def test_full_judges_everything_whose_check_exists() -> None:
    rounds = live.full_rounds()
    names = [name for current in rounds for name in current.faults]
    assert sorted(names) == sorted(item.name for item in (*PLANTED, *CONTROLS))
    assert not {item.name for item in PENDING} & set(names)
    assert all(dict(fault(name).asks) == dict(current.asks) for current in rounds for name in current.faults)
    asking = [current for current in rounds if current.asks or current.temperature]
    assert sorted(current.name for current in asking) == [
        "logit-bias",
        "repetition-penalty",
        "sampled",
        "top-p-sampled",
    ]
    assert all(fault(name).temperature == current.temperature for current in rounds for name in current.faults)
    assert all(any(fault(name).is_control for name in current.faults) for current in asking)
    assert all(current.budget.num_requests >= 200 for current in rounds)


@pytest.mark.parametrize("device", [None, "cpu", "cuda"])
def test_every_system_has_options_that_the_engine_takes(device: str | None) -> None:
    names = [item.name for item in FAULTS]
    config = live.live_config(names, SelftestOptions(device=device, seed=5))
    for name in ("stock", *names):
        system = config.system(name)
        options = parse_options(EngineSpec(name=name, model_path="x", options=system.options))
        assert options.device == (device or "auto")
        if options.is_assisted:
            assert options.batch_size == 1
    scale = live.GPU_SCALE if device == "cuda" else 1
    sizes = [config.system(name).options["batch_size"] for name in ("stock", "half-batches", "kept-drafts")]
    assert sizes == [64 * scale, 32 * scale, 64 * scale]
    assert config.system("self-drafting").options["assistant_model"] == "the-model"
    assert config.system("cut-text").options["post_processors"][0]["tokenizer"] == "the-model"
    assert config.system("kept-drafts").options["state_edits"][0]["seed"] == 5
    assert (config.seed, config.prompts.seed) == (5, 5)


def test_a_fault_must_fail_by_a_check_that_is_named_for_it() -> None:
    bias = fault("bias-every-seventh")
    assert finding_of(bias, claim_of(bias.name, Verdict.FAIL, rate=Verdict.FAIL)).is_met
    other = finding_of(bias, claim_of(bias.name, Verdict.FAIL, structure=Verdict.FAIL, rate=Verdict.PASS))
    assert not other.is_met
    assert other.is_broken
    assert other.surprising == ("structure",)
    passed = finding_of(bias, claim_of(bias.name, Verdict.PASS, rate=Verdict.PASS))
    assert passed.is_broken
    unsure = finding_of(bias, claim_of(bias.name, Verdict.INCONCLUSIVE, event=Verdict.INCONCLUSIVE))
    assert not unsure.is_met
    assert not unsure.is_broken
    assert unsure.got == "INCONCLUSIVE by event"


def test_a_control_must_pass() -> None:
    control = fault("eager")
    assert finding_of(control, claim_of("eager", Verdict.PASS)).is_met
    assert finding_of(control, claim_of("eager", Verdict.FAIL, rate=Verdict.FAIL)).is_broken
    assert not finding_of(control, claim_of("eager", Verdict.INCONCLUSIVE)).is_met


@pytest.mark.parametrize(
    ("claims", "verdict"),
    [
        ([right_claim("eager"), right_claim("kept-drafts")], Verdict.PASS),
        ([right_claim("eager"), claim_of("kept-drafts", Verdict.PASS)], Verdict.FAIL),
        ([claim_of("eager", Verdict.FAIL), right_claim("kept-drafts")], Verdict.FAIL),
        ([claim_of("eager", Verdict.INCONCLUSIVE), right_claim("kept-drafts")], Verdict.INCONCLUSIVE),
        ([], Verdict.INCONCLUSIVE),
    ],
)
def test_the_part_has_the_worst_verdict(claims: list[Claim], verdict: Verdict) -> None:
    part = part_of([finding_of(fault(claim.candidate), claim) for claim in claims])
    assert part.verdict is verdict
    assert len(part.problems) == (0 if verdict is Verdict.PASS or not claims else 1)
    found = part.to_json()
    assert len(found["evidence"]["findings"]) == len(claims)
    assert [row for table in part.tables for row in table.rows if "0.80 %" not in row] == []


def result_of(plan: Plan) -> GateResult:
    claims = tuple(right_claim(system.name) for system in plan.systems)
    return GateResult(claims=claims, report={}, run_folder=Path("run"))


def test_one_worker_runs_the_rounds_one_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans: list[Plan] = []

    def gate(plan: Plan, **_options: Any) -> GateResult:
        plans.append(plan)
        return result_of(plan)

    monkeypatch.setattr(live, "run_gate", gate)
    part = live.run(SelftestOptions(folder=tmp_path), SilentListener())
    assert part.verdict is Verdict.PASS
    assert [tuple(plan.candidates) for plan in plans] == [current.faults for current in live.QUICK]
    assert all(plan.record is None for plan in plans)


class HereAndNow:
    """A pool that runs its jobs at once; what crosses to another process must survive pickling."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        pass

    def __enter__(self) -> HereAndNow:
        return self

    def __exit__(self, *_details: object) -> None:
        pass

    def submit(self, function: Callable[[Plan], GateResult], plan: Plan) -> Future[GateResult]:
        done: Future[GateResult] = Future()
        done.set_result(pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(plan))))))
        return done


def test_workers_share_one_recorded_stock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans: list[Plan] = []
    recorded: list[Path] = []

    def gate(plan: Plan, **_options: Any) -> GateResult:
        plans.append(plan)
        return result_of(plan)

    def record(plan: Plan, *, claim: str, target: Path, listener: Any) -> Path:
        assert plan.candidates == ()
        recorded.append(target)
        return target

    monkeypatch.setattr(live, "run_gate", gate)
    monkeypatch.setattr(live, "record_baseline", record)
    monkeypatch.setattr(live, "ProcessPoolExecutor", HereAndNow)
    part = live.run(SelftestOptions(folder=tmp_path, is_full=True, num_workers=3), SilentListener())
    assert part.verdict is Verdict.PASS
    assert [path.parent for path in recorded] == [tmp_path] * 6
    assert len(set(recorded)) == 6
    assert {plan.record for plan in plans} == set(recorded)
    assert all(len(plan.candidates) <= 13 for plan in plans)
    judged = [name for plan in plans for name in _names(plan)]
    assert sorted(judged) == sorted(item.name for item in FAULTS if not item.is_pending)


def _names(plan: Plan) -> Iterator[str]:
    candidates: Sequence[Any] = plan.candidates
    yield from candidates


def test_a_run_is_resumed_only_by_its_own_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    resumed: list[Path | None] = []

    class Loaded:
        candidates = live.QUICK[1].faults

    def gate(plan: Plan, **_options: Any) -> GateResult:
        resumed.append(plan.resume)
        return result_of(plan)

    monkeypatch.setattr(live, "run_gate", gate)
    monkeypatch.setattr(live, "load_plan", lambda _path: Loaded())
    live.run(SelftestOptions(folder=tmp_path, resume=tmp_path / "run-0007"), SilentListener())
    assert resumed == [None, tmp_path / "run-0007"]
