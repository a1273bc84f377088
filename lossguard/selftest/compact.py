"""Comparisons from compact exports: one safetensors file per system, as ``lossguard_suites`` writes them after a run.

An export has no finish reasons and no calibration replies. Ends are therefore inferred from lengths, so that the
structure check sees nothing here, and stock's test replies stand for its calibration in the burst check. Where the
run folder is at hand, ``recorded`` loses neither.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from lossguard.checks.base import Arm, CheckInput, Thresholds
from lossguard.records import AuditedEvent, FinishReason, ForcedScores, Request, SamplingParams, ServedOutput
from lossguard.selftest.recorded import audited_throughout

INFERRED = "inferred"
_EXPLAINED = {1: True, 0: False, -1: None}


def compact_systems(folder: Path) -> dict[str, str]:
    """Candidates of an export, with the run that each belongs to."""
    found = {}
    for path in sorted(folder.glob("run-*_*.safetensors")):
        run, _, system = path.stem.partition("_")
        if not system.endswith(".stock"):
            found[system] = run
    return found


def read_compact(folder: Path, system: str) -> CheckInput:
    """One candidate beside stock. Raises KeyError for a system that the export does not have."""
    run = compact_systems(folder)[system]
    facts = json.loads((folder / f"{run}.json").read_text(encoding="utf-8"))
    requests = _requests(facts)
    stock_file = next(folder.glob(f"{run}_*.stock.safetensors"))
    thresholds = Thresholds.from_json(facts["thresholds"])
    stock = _arm("stock", load_file(stock_file), requests)
    candidate = _arm(system, load_file(folder / f"{run}_{system}.safetensors"), requests)
    return CheckInput(
        requests=requests,
        stock=stock,
        candidate=audited_throughout(candidate, thresholds),
        thresholds=thresholds,
        calibration_requests=requests,
        calibration=stock,
        expect={},
        vocab_size=2**31 - 1,
        seed=int(facts["seed"]),
    )


def _requests(facts: Mapping[str, Any]) -> tuple[Request, ...]:
    sampling = SamplingParams(max_tokens=int(facts["budget"]["max_tokens"]), stop_strings=(INFERRED,))
    rows = zip(facts["request_ids"], facts["prompt_lengths"], facts["clusters"], strict=True)
    return tuple(
        Request(id=name, prompt_ids=(0,) * length, sampling=sampling, set="exported", cluster=cluster)
        for name, length, cluster in rows
    )


def _arm(name: str, columns: Mapping[str, Any], requests: tuple[Request, ...]) -> Arm:
    scores = _scores(columns, requests)
    outputs = [
        _output(request, scores.served_id[scores.offsets[index] : scores.offsets[index + 1]])
        for index, request in enumerate(requests)
    ]
    audit = tuple(
        AuditedEvent(
            request_id=requests[int(index)].id,
            position=int(position),
            served_id=int(scores.served_id[scores.offsets[index] + position]),
            best_id=int(scores.best_id[scores.offsets[index] + position]),
            gap_nats=float(scores.gap[scores.offsets[index] + position]),
            explained=_EXPLAINED[int(state)],
        )
        for index, position, state in columns["events"]
    )
    return Arm(name=name, outputs=outputs, scores=scores, audit=audit)


def _output(request: Request, ids: np.ndarray) -> ServedOutput:
    """The reply, with the end that its length implies."""
    is_full = len(ids) >= request.sampling.max_tokens
    return ServedOutput(
        request_id=request.id,
        ids=tuple(ids.tolist()),
        finish_reason=FinishReason.LENGTH if is_full else FinishReason.STOP,
        stop_reason=None if is_full else INFERRED,
    )


def _scores(columns: Mapping[str, Any], requests: tuple[Request, ...]) -> ForcedScores:
    best = columns["best_logit"].astype(np.float32)
    best_id = columns["served_id"] + columns["best_minus_served"]
    second = best - columns["second_gap"].astype(np.float32)
    return ForcedScores(
        request_ids=tuple(request.id for request in requests),
        offsets=columns["offsets"].astype(np.int64),
        served_id=columns["served_id"],
        gap=columns["gap"],
        best_logit=best,
        rank=columns["rank"],
        best_id=best_id,
        logprob=columns["logprob"],
        top_ids=np.stack([best_id, np.full_like(best_id, -1)], axis=1),
        top_logits=np.stack([best, second], axis=1),
        finite=columns["rank"] >= 0,
    )
