"""A verdict is never reached on files that were changed, on replays that did not happen, or on odd engine outputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lossguard.engines.base import ForcedPrefix
from lossguard.errors import EngineError, IntegrityError, UsageError
from lossguard.gate import load_plan, recheck, rejudge, run_gate
from lossguard.records import AuditedEvent, FinishReason, ServedOutput, Verdict
from lossguard.report.terminal import render_report
from lossguard.scoring.columns import load_scores, save_scores
from tests.gate.conftest import Stack
from tests.gate.toy import VOCAB_SIZE, ToyEngine, bias_every_seventh, handle, wrong_token


def test_tampered_scores_requests_and_thresholds_are_refused(stack: Stack) -> None:
    run = stack.judge(ToyEngine(stack.target, faults=(wrong_token(every=15),))).run_folder
    shard = run / "candidate" / "scores-0000.safetensors"
    scores = load_scores(shard)
    changes: dict[Path, Callable[[Path], None]] = {
        shard: lambda path: save_scores(path, replace(scores, gap=np.zeros_like(scores.gap))),
        run / "requests.jsonl": _replace_prompts,
        run / "calibration.json": _raise_thresholds,
    }
    for path, change in changes.items():
        original = path.read_bytes()
        change(path)
        with pytest.raises(IntegrityError, match="LG0617"):
            rejudge(run)
        path.write_bytes(original)
    assert rejudge(run).verdict is Verdict.FAIL


def _replace_prompts(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**row, "prompt_ids": [1, 2, 3]}) + "\n" for row in rows))


def _raise_thresholds(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "event_nats": 99.0}))


def test_a_damaged_document_is_named(stack: Stack) -> None:
    run = stack.judge(ToyEngine(stack.target)).run_folder
    for name in ("plan.json", "fingerprints.json"):
        original = (run / name).read_bytes()
        (run / name).write_text("{}")
        with pytest.raises(IntegrityError, match="LG0606"):
            rejudge(run)
        (run / name).write_bytes(original)


def test_deleted_calibration_replies_do_not_move_frozen_thresholds(stack: Stack) -> None:
    run = stack.judge(ToyEngine(stack.target)).run_folder
    (run / "stock" / "calibration-outputs.jsonl").unlink()
    changed = ToyEngine(stack.target, noise_nats=0.02, faults=(bias_every_seventh(0.3),))
    with pytest.raises(IntegrityError, match="LG0619"):
        run_gate(stack.plan([handle("candidate", ToyEngine(stack.target))], stock=handle("stock", changed), resume=run))


def test_an_audit_holds_for_the_tokens_that_were_audited(stack: Stack) -> None:
    run = stack.judge(ToyEngine(stack.target, faults=(wrong_token(every=15),))).run_folder
    path = run / "candidate" / "audit.jsonl"
    events = [AuditedEvent.from_json(json.loads(line)) for line in path.read_text().splitlines()]
    foreign = [replace(event, explained=True, prefix_hash="0" * 16) for event in events]
    path.write_text("".join(json.dumps(event.to_json()) + "\n" for event in foreign))
    assert rejudge(run).claims[0].evidence.check("event").verdict is Verdict.INCONCLUSIVE


def test_the_first_divergence_may_be_unscored(stack: Stack) -> None:
    other = ToyEngine(stack.target, batch_size=5)
    result = stack.judge(other)
    example = next(e for e in result.claims[0].evidence.examples if e["kind"] == "first_divergence")
    stack.scorer.nan_at = (example["request_id"], example["position"])
    again = stack.judge(ToyEngine(stack.target, batch_size=5))
    assert again.claims[0].evidence.check("scores").verdict is Verdict.INCONCLUSIVE
    assert again.verdict is Verdict.INCONCLUSIVE, render_report(again.report)


@pytest.mark.parametrize("bad_id", [-1, VOCAB_SIZE + 400, 2**40])
def test_illegal_ids_among_neighbours_get_their_verdict(stack: Stack, bad_id: int) -> None:
    def invent(output: ServedOutput) -> ServedOutput:
        number = int(output.request_id[1:])
        at = 2 + number % 5
        if number % 3 or len(output.ids) <= at:
            return output
        return replace(output, ids=(*output.ids[:at], bad_id, *output.ids[at + 1 :]))

    stock = StrictEngine(stack.target)
    candidate = ToyEngine(stack.target, finish=invent, faults=(wrong_token(every=15, position=1),))
    result = run_gate(stack.plan([handle("candidate", candidate)], stock=handle("stock", stock)))
    checks = {check.check: check.verdict for check in result.claims[0].evidence.checks}
    assert checks["structure"] is Verdict.FAIL
    assert checks["event"] is Verdict.FAIL


@dataclass
class StrictEngine(ToyEngine):
    """Stock that breaks, as a real one does, when it is fed an id that it does not have."""

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        for prefix in batch:
            fed = prefix.served_ids[: prefix.num_positions]
            assert all(0 <= token < VOCAB_SIZE for token in fed), "index out of range"
        return super().forced_decode(batch)


@dataclass
class MuteEngine(ToyEngine):
    """Stock whose forced decode gives nothing."""

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        return [() for _ in batch]


def test_replays_that_did_not_happen_are_no_evidence(stack: Stack) -> None:
    candidate = handle("candidate", ToyEngine(stack.target, faults=(wrong_token(every=15),)))
    with pytest.raises(EngineError, match="LG0620"):
        run_gate(stack.plan([candidate], stock=handle("stock", MuteEngine(stack.target))))


def test_lists_numpy_numbers_and_strings_are_read(stack: Stack) -> None:
    def odd(output: ServedOutput) -> ServedOutput:
        ids: Any = list(np.array(output.ids))
        reason: Any = output.finish_reason.value
        telemetry: Any = {"batch": (np.float32(3.0),)}
        return replace(output, ids=ids, finish_reason=reason, text="\ud800", telemetry=telemetry)

    same = run_gate(stack.plan([handle("candidate", ToyEngine(stack.target, finish=odd), {"diverging": True})]))
    assert same.claims[0].evidence.check("vacuity").verdict is Verdict.INCONCLUSIVE, "nothing diverges"
    assert rejudge(same.run_folder).verdict is same.verdict


def _as_float(output: ServedOutput) -> ServedOutput:
    ids: Any = tuple(float(token) for token in output.ids)
    return replace(output, ids=ids)


def _as_nothing(_output: ServedOutput) -> Any:
    return {"ids": [1]}


def _unknown_reason(output: ServedOutput) -> ServedOutput:
    reason: Any = "because"
    return replace(output, finish_reason=reason)


def _not_finite(output: ServedOutput) -> ServedOutput:
    return replace(output, telemetry={"drafts": (float("nan"),)})


@pytest.mark.parametrize("odd", [_as_float, _as_nothing, _unknown_reason, _not_finite])
def test_malformed_outputs_are_engine_errors(stack: Stack, odd: Callable[[ServedOutput], Any]) -> None:
    with pytest.raises(EngineError, match="LG0618"):
        stack.judge(ToyEngine(stack.target, finish=odd))


def test_a_stop_for_another_reason_than_it_says_fails(stack: Stack) -> None:
    def lie(output: ServedOutput) -> ServedOutput:
        return replace(output, stop_reason=77) if output.finish_reason is FinishReason.STOP else output

    result = stack.judge(ToyEngine(stack.target, finish=lie))
    stopped = [o for o in (result.run_folder / "candidate" / "outputs.jsonl").read_text().splitlines() if '"stop"' in o]
    structure = result.claims[0].evidence.check("structure")
    assert (structure.verdict is Verdict.FAIL) == bool(stopped)
    assert stopped, "the toy stops now and then"


def test_readers_wait_for_no_writer_and_cut_nothing(stack: Stack) -> None:
    from lossguard.run_folder import RunFolder, only_process

    run = stack.judge(ToyEngine(stack.target)).run_folder
    with only_process(RunFolder(run)):
        with pytest.raises(UsageError, match="LG0611"):
            rejudge(run)
        with pytest.raises(UsageError, match="LG0611"):
            recheck(run, request_id="p0000", position=0)


def test_resuming_keeps_the_scorers_fingerprint(stack: Stack) -> None:
    first = stack.judge(ToyEngine(stack.target))
    before = json.loads((first.run_folder / "fingerprints.json").read_text())["scorer"]
    run_gate(stack.plan([handle("candidate", ToyEngine(stack.target))], resume=first.run_folder))
    assert json.loads((first.run_folder / "fingerprints.json").read_text())["scorer"] == before
    assert before["loaded"] == {"kind": "toy"}
    assert load_plan(first.run_folder).resume == first.run_folder
