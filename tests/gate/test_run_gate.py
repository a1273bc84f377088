"""The gate end to end over a toy stack: lossless candidates pass, planted faults fail by the right check."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from lossguard.config import SystemConfig
from lossguard.errors import EngineError, StorageError, UsageError
from lossguard.gate import load_plan, rejudge, run_gate
from lossguard.plan import Plan
from lossguard.records import FinishReason, ServedOutput, Verdict
from lossguard.report.json_report import load_schema
from lossguard.report.terminal import render_report
from tests.gate.conftest import NUM_REQUESTS, Stack
from tests.gate.toy import ToyEngine, bias_every_seventh, cut, handle, wrong_token


def test_another_batch_composition_passes(stack: Stack) -> None:
    result = stack.judge(ToyEngine(stack.target, batch_size=5))
    assert result.verdict is Verdict.PASS, render_report(result.report)
    assert result.exit_code == 0
    assert result.claim("candidate/lossless").evidence.sizes["num_requests"] == NUM_REQUESTS


def test_bias_fails_by_rate(stack: Stack) -> None:
    result = stack.judge(ToyEngine(stack.target, faults=(bias_every_seventh(2.0),)))
    assert result.claim("candidate/lossless").evidence.check("rate").verdict is Verdict.FAIL
    assert result.exit_code == 1


def test_rare_wrong_tokens_fail_by_event(stack: Stack) -> None:
    result = stack.judge(ToyEngine(stack.target, faults=(wrong_token(every=15),)))
    event = result.claim("candidate/lossless").evidence.check("event")
    assert event.verdict is Verdict.FAIL
    examples = result.claim("candidate/lossless").evidence.examples
    assert examples[0]["kind"] == "event"
    assert examples[0]["position"] == 9
    assert examples[0]["replays"]["alone"] == examples[0]["best_id"]


def test_replies_cut_but_reported_as_length_fail_by_structure(stack: Stack) -> None:
    result = stack.judge(ToyEngine(stack.target, finish=cut(30)))
    assert result.claim("candidate/lossless").evidence.check("structure").verdict is Verdict.FAIL


def test_stock_without_forced_decode_is_audited_by_prefill(stack: Stack) -> None:
    stock = handle("stock", ToyEngine(stack.target, forced=False))
    candidate = handle("candidate", ToyEngine(stack.target, faults=(wrong_token(every=15),)))
    result = run_gate(stack.plan([candidate], stock=stock))
    event = result.claim("candidate/lossless").evidence.check("event")
    assert event.verdict is Verdict.FAIL
    assert "prefill" in result.claim("candidate/lossless").evidence.examples[0]["replays"]


def test_report_follows_the_schema_and_renders(stack: Stack) -> None:
    result = stack.judge(ToyEngine(stack.target, faults=(bias_every_seventh(2.0),)))
    jsonschema.Draft202012Validator(load_schema()).validate(json.loads(result.to_json()))
    text = render_report(result.report)
    assert "NOT LOSSLESS  candidate against stock" in text
    assert "see it again: lossguard recheck" in text
    rows = [line.split()[1] for line in text.splitlines() if line.startswith("  ") and "FAIL" in line.split()[1:2]]
    assert rows, "failing checks come first"


def test_several_candidates_share_one_stock_run(stack: Stack) -> None:
    stock = ToyEngine(stack.target)
    good, bad = ToyEngine(stack.target, batch_size=6), ToyEngine(stack.target, faults=(bias_every_seventh(3.0),))
    result = run_gate(stack.plan([handle("good", good), handle("bad", bad)], stock=handle("stock", stock)))
    assert result.claim("good/lossless").verdict is Verdict.PASS
    assert result.claim("bad/lossless").verdict is Verdict.FAIL
    assert result.verdict is Verdict.FAIL
    outputs = (result.run_folder / "stock" / "outputs.jsonl").read_text().splitlines()
    assert len(outputs) == NUM_REQUESTS
    assert stock.is_closed
    assert good.is_closed
    assert bad.is_closed


def test_sampled_requests_are_inconclusive_without_a_sampling_check(stack: Stack) -> None:
    result = run_gate(stack.plan([handle("candidate", ToyEngine(stack.target))], temperature=0.7))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.exit_code == 10
    assert result.claim("candidate/lossless").evidence.check("sampling").verdict is Verdict.INCONCLUSIVE


def test_a_path_that_never_fired_is_inconclusive(stack: Stack) -> None:
    idle = ToyEngine(stack.target, batch_size=5, telemetry={"drafts": (0.0,)})
    result = run_gate(stack.plan([handle("candidate", idle, {"drafts": True})]))
    assert result.claim("candidate/lossless").evidence.check("vacuity").verdict is Verdict.INCONCLUSIVE
    assert result.verdict is Verdict.INCONCLUSIVE


def test_thresholds_are_on_disk_before_the_candidate_serves(stack: Stack) -> None:
    seen: list[bool] = []

    def look(output: ServedOutput) -> ServedOutput:
        seen.append((stack.folder / "runs" / "run-0001" / "calibration.json").is_file())
        return output

    stack.judge(ToyEngine(stack.target, finish=look))
    assert seen
    assert all(seen)


def test_nan_logits_are_inconclusive_and_named(stack: Stack) -> None:
    first = run_gate(stack.plan([handle("candidate", ToyEngine(stack.target, batch_size=5))]))
    requests = (first.run_folder / "requests.jsonl").read_text().splitlines()
    stack.scorer.nan_at = (json.loads(requests[3])["id"], 2)
    result = stack.judge(ToyEngine(stack.target, batch_size=5))
    scores = result.claim("candidate/lossless").evidence.check("scores")
    assert scores.verdict is Verdict.INCONCLUSIVE
    assert json.loads(requests[3])["id"] in json.dumps(scores.to_json())


def test_an_id_outside_the_vocabulary_fails(stack: Stack) -> None:
    def invent(output: ServedOutput) -> ServedOutput:
        if not output.request_id.endswith("7"):
            return output
        return replace(output, ids=(*output.ids[:3], 1061800448, *output.ids[4:]))

    result = stack.judge(ToyEngine(stack.target, finish=invent))
    structure = result.claim("candidate/lossless").evidence.check("structure")
    assert structure.verdict is Verdict.FAIL
    assert "1061800448" in json.dumps(structure.to_json())
    json.loads(result.to_json(), parse_constant=lambda name: pytest.fail(f"{name} in the report"))


def test_empty_replies_fail(stack: Stack) -> None:
    def empty(output: ServedOutput) -> ServedOutput:
        return replace(output, ids=(), logprobs=None, finish_reason=FinishReason.STOP)

    result = stack.judge(ToyEngine(stack.target, finish=empty))
    assert result.claim("candidate/lossless").evidence.check("structure").verdict is Verdict.FAIL


def test_an_engine_that_dies_resumes(stack: Stack) -> None:
    dying = ToyEngine(stack.target, batch_size=5, dies_after=70)
    with pytest.raises(EngineError):
        stack.judge(dying)
    run = stack.folder / "runs" / "run-0001"
    assert len((run / "candidate" / "outputs.jsonl").read_text().splitlines()) == 70
    healthy, stock = ToyEngine(stack.target, batch_size=5), ToyEngine(stack.target)
    plan = stack.plan([handle("candidate", healthy)], stock=handle("stock", stock), resume=run)
    result = run_gate(plan)
    assert result.verdict is Verdict.PASS, render_report(result.report)
    assert healthy.num_served == NUM_REQUESTS - 70
    assert stock.num_served == 0, "stock's replies were on disk"


def test_a_line_cut_short_is_served_again(stack: Stack) -> None:
    first = stack.judge(ToyEngine(stack.target, batch_size=5))
    path = first.run_folder / "candidate" / "outputs.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    healthy = ToyEngine(stack.target, batch_size=5)
    run_gate(stack.plan([handle("candidate", healthy)], resume=first.run_folder))
    assert healthy.num_served == 1
    assert len(path.read_bytes().splitlines()) == NUM_REQUESTS


def test_resume_refuses_another_plan(stack: Stack) -> None:
    first = stack.judge(ToyEngine(stack.target))
    with pytest.raises(UsageError, match="LG0612"):
        run_gate(stack.plan([handle("other", ToyEngine(stack.target))], resume=first.run_folder))


def test_a_full_disk_keeps_what_was_written(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = os.fsync, [0]

    def full(handle_: int) -> None:
        count[0] += 1
        if count[0] == 200:
            raise OSError(28, "No space left on device")
        real(handle_)

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="LG0607"):
        stack.judge(ToyEngine(stack.target, batch_size=5))
    monkeypatch.undo()
    monkeypatch.setattr("lossguard.stages.workspace.scorer_factory", lambda _kind: lambda _path, _options: stack.scorer)
    monkeypatch.setenv("LOSSGUARD_CACHE", str(stack.folder / "cache"))
    run = stack.folder / "runs" / "run-0001"
    plan = stack.plan([handle("candidate", ToyEngine(stack.target, batch_size=5))], resume=run)
    assert run_gate(plan).verdict is Verdict.PASS


def test_rejudge_gives_the_same_verdict_without_any_engine(stack: Stack) -> None:
    first = stack.judge(ToyEngine(stack.target, faults=(bias_every_seventh(2.0),)))
    scored = stack.scorer.num_scored
    again = rejudge(first.run_folder)
    assert again.verdict is first.verdict
    assert stack.scorer.num_scored == scored
    assert again.claims[0].evidence.check("rate") == first.claims[0].evidence.check("rate")
    assert (first.run_folder / "rejudged.json").is_file()


def test_rejudge_of_unaudited_events_is_inconclusive_at_best(stack: Stack) -> None:
    first = stack.judge(ToyEngine(stack.target, faults=(wrong_token(every=15),)))
    (first.run_folder / "candidate" / "audit.jsonl").unlink()
    event = rejudge(first.run_folder).claims[0].evidence.check("event")
    assert event.verdict is Verdict.INCONCLUSIVE


def test_the_plan_reads_back(stack: Stack) -> None:
    first = stack.judge(ToyEngine(stack.target))
    plan = load_plan(first.run_folder)
    assert plan.resume == first.run_folder
    assert [system.name for system in plan.systems] == ["candidate"]


def test_unknown_system_is_named_before_anything_runs(stack: Stack, tmp_path: Path) -> None:
    config = replace(stack.config, systems={"stock": SystemConfig(name="stock", engine="toy")})
    with pytest.raises(UsageError, match="Did you mean"):
        run_gate(Plan(config, baseline="stok", candidates=["stock"], folder=tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()
