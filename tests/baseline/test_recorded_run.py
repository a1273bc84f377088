"""A record in place of a live stock: the same verdicts and evidence, and stock starts for audits only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lossguard.baseline.record import load_record, write_record
from lossguard.engines.base import ForcedPrefix
from lossguard.errors import BaselineError, EngineError, UsageError
from lossguard.gate import check_record, load_plan, record_baseline, rejudge, run_gate
from lossguard.gate_result import GateResult
from lossguard.plan import Budget, Plan
from lossguard.records import Verdict
from tests.baseline.conftest import CLAIM, Recorded, recorded_plan, stock_plan
from tests.gate.conftest import BUDGET, NUM_REQUESTS, Stack
from tests.gate.test_stock_guard import PatchingEngine
from tests.gate.toy import ToyEngine, bias_every_seventh, handle, write_prompts, wrong_token


@dataclass
class WatchedEngine(ToyEngine):
    """A toy stock that counts the prefixes it is made to decode."""

    num_forced: int = 0

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        self.num_forced += len(batch)
        return super().forced_decode(batch)


def candidates(stack: Stack) -> list[tuple[str, ToyEngine]]:
    """One lossless, one that fails by rate, one that fails by events."""
    return [
        ("good", ToyEngine(stack.target, batch_size=5)),
        ("biased", ToyEngine(stack.target, faults=(bias_every_seventh(2.0),))),
        ("wrong", ToyEngine(stack.target, faults=(wrong_token(every=15),))),
    ]


def test_verdicts_and_evidence_are_those_of_the_live_run(stack: Stack, recorded: Recorded) -> None:
    systems = [handle(name, engine) for name, engine in candidates(stack)]
    live = run_gate(stack.plan(systems))
    stock = WatchedEngine(stack.target)
    by_record = run_gate(recorded_plan(stack, recorded.path, *systems, stock=stock))
    assert [claim.verdict for claim in live.claims] == [Verdict.PASS, Verdict.FAIL, Verdict.FAIL]
    assert by_record.report["claims"] == live.report["claims"]
    assert by_record.report["thresholds"] == live.report["thresholds"]
    assert by_record.report["prompts"] == live.report["prompts"]
    assert by_record.exit_code == live.exit_code
    assert stock.num_served == 0, "stock's replies come from the record"
    assert stock.num_forced > 0, "its own decode still audits the events"


def test_a_candidate_that_patches_the_scorer_does_not_pass_beside_a_record(stack: Stack, recorded: Recorded) -> None:
    candidate = PatchingEngine(stack.target, stack=stack)
    result = run_gate(recorded_plan(stack, recorded.path, handle("candidate", candidate)))
    assert result.verdict is Verdict.INCONCLUSIVE
    reasons = {check.check: check.summary for check in result.claims[0].evidence.checks}
    assert "the scorer changed since calibration" in reasons["rate"]


def test_without_events_stock_never_starts(stack: Stack, recorded: Recorded) -> None:
    stock, candidate = WatchedEngine(stack.target), ToyEngine(stack.target, batch_size=5)
    result = run_gate(recorded_plan(stack, recorded.path, handle("candidate", candidate), stock=stock))
    assert result.verdict is Verdict.PASS
    assert result.claims[0].evidence.check("event").evidence["num_audited_positions"] == 0
    assert (stock.num_served, stock.num_forced) == (0, 0)
    assert candidate.num_served == NUM_REQUESTS
    assert_names_its_record(result, recorded)


def assert_names_its_record(result: GateResult, recorded: Recorded) -> None:
    facts = result.report["run"]["baseline"]
    assert facts["record"] == str(recorded.path)
    assert facts["claim"] == CLAIM
    kept = json.loads((result.run_folder / "baseline.json").read_text())
    assert kept["sha256"] == facts["sha256"]
    assert result.report["fingerprint"]["stock"] == kept["fingerprint"]


def test_a_live_run_names_no_record(stack: Stack) -> None:
    plan = replace(stack.plan([handle("candidate", ToyEngine(stack.target))]), budget="3x4")
    assert run_gate(plan).report["run"]["baseline"] is None


def test_rejudging_and_resuming_need_no_record(stack: Stack, recorded: Recorded, tmp_path: Path) -> None:
    record = tmp_path / "copy.safetensors"
    record.write_bytes(recorded.path.read_bytes())
    dying = ToyEngine(stack.target, batch_size=5, dies_after=70)
    with pytest.raises(EngineError):
        run_gate(recorded_plan(stack, record, handle("candidate", dying)))
    record.unlink()
    run = stack.folder / "runs" / "run-0001"
    healthy = ToyEngine(stack.target, batch_size=5)
    plan = recorded_plan(stack, record, handle("candidate", healthy))
    result = run_gate(replace(plan, resume=run))
    assert healthy.num_served == NUM_REQUESTS - 70
    again = rejudge(run)
    assert again.verdict is result.verdict is Verdict.PASS
    assert again.report["run"]["baseline"] == result.report["run"]["baseline"]
    assert load_plan(run).record == record


def test_a_crash_while_the_record_is_laid_out_begins_again(
    stack: Stack, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_arguments: object) -> None:
        raise KeyboardInterrupt

    stock, candidate = ToyEngine(stack.target), ToyEngine(stack.target, batch_size=5)
    plan = recorded_plan(stack, recorded.path, handle("candidate", candidate), stock=stock)
    with monkeypatch.context() as patch:
        patch.setattr("lossguard.stages.recorded_baseline.save_forced", crash)
        with pytest.raises(KeyboardInterrupt):
            run_gate(plan)
    result = run_gate(replace(plan, resume=stack.folder / "runs" / "run-0001"))
    assert result.verdict is Verdict.PASS
    assert stock.num_served == 0


def refusal(plan: Plan, *engines: ToyEngine) -> BaselineError:
    """The error of a run that must not start."""
    with pytest.raises(BaselineError) as early:
        check_record(plan)
    assert not plan.folder.exists(), "the check leaves nothing behind"
    with pytest.raises(BaselineError) as caught:
        run_gate(plan)
    assert str(early.value) == str(caught.value)
    assert [engine.num_served for engine in engines] == [0] * len(engines), "nothing may have run"
    assert caught.value.exit_code == 4
    return caught.value


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"seed": 99}, "seed: recorded 17, asked 99"),
        ({"repeats": 2}, "repeats: recorded 1, asked 2"),
        ({"temperature": 0.5}, "temperature: recorded 0.0, asked 0.5"),
        ({"budget": replace(BUDGET, max_tokens=41)}, "sizes.max_tokens: recorded 40, asked 41"),
        ({"budget": replace(BUDGET, num_calibration=61)}, "sizes.num_calibration: recorded 60, asked 61"),
        ({"prompt_sets": ("chat",)}, "prompts.sets: recorded ['prompts.jsonl'], asked ['chat']"),
    ],
)
def test_other_parameters_are_refused_before_a_run_folder_is_made(
    stack: Stack, recorded: Recorded, change: dict[str, object], difference: str
) -> None:
    stock, candidate = ToyEngine(stack.target), ToyEngine(stack.target)
    plan = recorded_plan(stack, recorded.path, handle("candidate", candidate), stock=stock)
    error = refusal(replace(plan, **change), stock, candidate)  # type: ignore[arg-type]
    assert error.code == "LG0704"
    assert error.found.endswith(f"is of something else: {difference}")
    assert not (stack.folder / "runs").exists()


def test_the_name_of_the_budget_is_no_parameter(stack: Stack, recorded: Recorded) -> None:
    sizes = Budget(name="mine", num_requests=NUM_REQUESTS, max_tokens=BUDGET.max_tokens, num_calibration=60)
    plan = recorded_plan(stack, recorded.path, handle("candidate", ToyEngine(stack.target, batch_size=5)))
    assert run_gate(replace(plan, budget=sizes)).verdict is Verdict.PASS


def test_another_stock_is_refused_with_the_differences(stack: Stack, recorded: Recorded) -> None:
    stock, candidate = ToyEngine(stack.target, noise_nats=0.03), ToyEngine(stack.target)
    error = refusal(recorded_plan(stack, recorded.path, handle("candidate", candidate), stock=stock), stock, candidate)
    assert error.code == "LG0705"
    assert "engine.noise_nats: 0.02 against 0.03" in error.found


def test_another_machine_is_refused_with_the_differences(stack: Stack, recorded: Recorded, tmp_path: Path) -> None:
    record = load_record(recorded.path)
    facts = {**record.fingerprint.identity, "versions.torch": "1.0"}
    elsewhere = write_record(
        tmp_path / "elsewhere.safetensors",
        replace(record, fingerprint=replace(record.fingerprint, identity=facts)),
    )
    candidate = ToyEngine(stack.target)
    error = refusal(recorded_plan(stack, elsewhere, handle("candidate", candidate)), candidate)
    assert error.code == "LG0705"
    assert "versions.torch: '1.0' against" in error.found


def test_changed_prompts_are_refused(stack: Stack, recorded: Recorded) -> None:
    write_prompts(stack.folder / "prompts.jsonl", 400, seed=4)
    candidate = ToyEngine(stack.target)
    error = refusal(recorded_plan(stack, recorded.path, handle("candidate", candidate)), candidate)
    assert error.code == "LG0706"
    assert f"{NUM_REQUESTS + 60} requests have changed" in error.found


def test_a_missing_record_is_refused(stack: Stack, tmp_path: Path) -> None:
    candidate = ToyEngine(stack.target)
    error = refusal(recorded_plan(stack, tmp_path / "absent.safetensors", handle("candidate", candidate)), candidate)
    assert error.code == "LG0701"
    assert not (stack.folder / "runs").exists()


def test_thresholds_frozen_by_other_rules_are_used_and_named(stack: Stack, recorded: Recorded, tmp_path: Path) -> None:
    older = write_record(
        tmp_path / "older.safetensors",
        replace(load_record(recorded.path), rules_sha256="0" * 64, producer_version="0.0.9"),
    )
    result = run_gate(recorded_plan(stack, older, handle("candidate", ToyEngine(stack.target, batch_size=5))))
    assert "frozen by other rules (lossguard 0.0.9)" in (result.run_folder / "log.txt").read_text()
    assert result.report["run"]["baseline"]["rules_sha256"] == "0" * 64


def test_thresholds_that_another_scorer_learned_are_used_and_named(
    stack: Stack, recorded: Recorded, tmp_path: Path
) -> None:
    record = load_record(recorded.path)
    loaded = {**record.scorer["loaded"], "torch": "1.0", "threads_reason": "another"}
    other = write_record(tmp_path / "other.safetensors", replace(record, scorer={**record.scorer, "loaded": loaded}))
    candidate = handle("candidate", ToyEngine(stack.target, batch_size=5))
    log = (run_gate(recorded_plan(stack, other, candidate)).run_folder / "log.txt").read_text()
    assert "learned with another scorer (torch: recorded '1.0', here None)" in log
    same = run_gate(recorded_plan(stack, recorded.path, candidate)).run_folder / "log.txt"
    assert not same.exists() or "another scorer" not in same.read_text()


def test_recording_leaves_candidates_alone(stack: Stack, tmp_path: Path) -> None:
    candidate = ToyEngine(stack.target)
    plan = replace(stack.plan([handle("candidate", candidate)]), budget="3x4", record=tmp_path / "absent")
    path = record_baseline(plan, claim="a claim", target=tmp_path / "new" / "record.safetensors")
    record = load_record(path)
    assert candidate.num_served == 0
    assert (record.name, record.claim, len(record.test)) == ("stock", "a claim", 3)
    assert [entry.name for entry in path.parent.iterdir()] == ["record.safetensors"], "no temporary file is left"


def test_an_interrupted_recording_resumes_to_the_same_record(stack: Stack, recorded: Recorded, tmp_path: Path) -> None:
    with pytest.raises(EngineError):
        record_baseline(
            stock_plan(stack, ToyEngine(stack.target, dies_after=201)), claim=CLAIM, target=tmp_path / "record"
        )
    assert not (tmp_path / "record").exists()
    plan = replace(stock_plan(stack), resume=stack.folder / "runs" / "run-0001")
    record = load_record(record_baseline(plan, claim=CLAIM, target=tmp_path / "record"))
    whole = load_record(recorded.path)
    assert record.test == whole.test
    assert record.thresholds == whole.thresholds
    assert record.parameters == whole.parameters


def test_a_record_that_fits_passes_the_check(stack: Stack, recorded: Recorded) -> None:
    stock = ToyEngine(stack.target)
    check_record(recorded_plan(stack, recorded.path, stock=stock))
    check_record(stock_plan(stack))
    assert (stock.num_served, stock.is_closed) == (0, True)
    assert not (stack.folder / "runs").exists()


def test_a_recording_is_not_judged(stack: Stack, tmp_path: Path) -> None:
    record_baseline(replace(stock_plan(stack), budget="3x4"), claim=CLAIM, target=tmp_path / "record")
    with pytest.raises(UsageError, match="LG0604"):
        rejudge(stack.folder / "runs" / "run-0001")


def test_a_plan_without_candidates_judges_nothing(stack: Stack) -> None:
    with pytest.raises(UsageError, match="LG0604"):
        run_gate(stock_plan(stack))
    assert not (stack.folder / "runs").exists()


@pytest.mark.parametrize("claim", ["", "  "])
def test_an_empty_claim_is_refused_before_anything_runs(stack: Stack, tmp_path: Path, claim: str) -> None:
    with pytest.raises(UsageError, match="LG0708"):
        record_baseline(stock_plan(stack), claim=claim, target=tmp_path / "record")
    assert not (stack.folder / "runs").exists()
