"""A finished run in few bytes: what was served and how it was scored, for figures that are computed elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from lossguard.records import ForcedScores
from lossguard.run_folder import RunFolder, read_audit
from lossguard.scoring.columns import concat_scores, load_scores

Columns = dict[str, np.ndarray[Any, Any]]


def write_compact(runs: Sequence[Path], target: Path) -> None:
    """Write one safetensors file per system of these runs to ``target``, with a ``run-NNNN.json`` per run.

    Columns: ``offsets`` int32 [R + 1] in the order of the requests, and per token ``served_id`` int32, ``gap`` and
    ``logprob`` float32 (nats), ``best_logit`` and ``second_gap`` float16 (nats; top-2 gap), ``rank`` int32 and
    ``best_minus_served`` int32. ``events`` int32 [E, 3] holds request index, position, and 1 explained, 0 unexplained,
    -1 not audited. Files are ``run-NNNN_SYSTEM.safetensors``; stock's scores beside each candidate are
    ``run-NNNN_SYSTEM.stock.safetensors``, kept for the first candidate of a run only, since others are alike.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in runs:
        folder = RunFolder.open(path)
        plan = folder.read_json("plan.json")
        if not (path / "requests.jsonl").exists():
            continue  # it was cut short before it asked anything
        order = [request.id for request in folder.read_requests("requests.jsonl")]
        for number, system in enumerate(plan["candidates"]):
            stems = {"scores": ""} | ({"stock-scores": ".stock"} if number == 0 else {})
            for stem, suffix in stems.items():
                found = _scores(path / system, stem)
                if found is not None:
                    audited = path / (plan["baseline"] if suffix else system)
                    columns = {**_columns(found), "events": _events(audited, order)}
                    save_file(columns, target / f"{path.name}_{system}{suffix}.safetensors")
        (target / f"{path.name}.json").write_text(json.dumps(_facts(folder, plan, order)), encoding="utf-8")


def _scores(folder: Path, stem: str) -> ForcedScores | None:
    shards = sorted(folder.glob(f"{stem}-*.safetensors"))
    return concat_scores([load_scores(shard) for shard in shards]) if shards else None


def _columns(scores: ForcedScores) -> Columns:
    return {
        "offsets": scores.offsets.astype(np.int32),
        "served_id": scores.served_id,
        "gap": scores.gap,
        "logprob": scores.logprob,
        "best_logit": scores.best_logit.astype(np.float16),
        "second_gap": (scores.top_logits[:, 0] - scores.top_logits[:, 1]).astype(np.float16),
        "rank": scores.rank,
        "best_minus_served": scores.best_id - scores.served_id,
    }


def _events(folder: Path, order: Sequence[str]) -> np.ndarray[Any, Any]:
    place = {name: index for index, name in enumerate(order)}
    state = {True: 1, False: 0, None: -1}
    rows = [
        (place[event.request_id], event.position, state[event.explained])
        for event in read_audit(folder / "audit.jsonl")
    ]
    return np.array(rows, dtype=np.int32).reshape(-1, 3)


def _facts(folder: RunFolder, plan: dict[str, Any], order: Sequence[str]) -> dict[str, Any]:
    requests = folder.read_requests("requests.jsonl")
    report = folder.path / "report.json"
    return {
        "candidates": plan["candidates"],
        "budget": plan["budget"],
        "seed": plan["seed"],
        "thresholds": folder.read_json("calibration.json"),
        "request_ids": list(order),
        "prompt_lengths": [len(request.prompt_ids) for request in requests],
        "clusters": [request.cluster for request in requests],
        "claims": json.loads(report.read_text(encoding="utf-8"))["claims"] if report.exists() else [],
    }
