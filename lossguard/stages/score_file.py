"""Scoring replies that were recorded elsewhere: a JSONL file in, columns and a summary out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lossguard.config import Config
from lossguard.errors import UsageError, near_miss
from lossguard.models import resolve_model
from lossguard.records import FinishReason, Request, SamplingParams, ServedOutput
from lossguard.scoring.base import ScoringJob
from lossguard.scoring.columns import save_scores
from lossguard.scoring.registry import scorer_factory

FIELDS = frozenset({"id", "prompt_ids", "output_ids"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScores:
    """Summary of scored replies. Gaps in nats; the columns themselves are in ``path``."""

    path: str
    num_requests: int
    num_tokens: int
    num_not_best: int
    num_not_finite: int
    num_unknown_ids: int
    mean_gap_nats: float
    max_gap_nats: float
    worst: tuple[tuple[str, int, float], ...]  # (request id, position, gap), largest first

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)


def score_file(
    config: Config, source: Path, target: Path, *, progress: Callable[[int], None] = lambda _tokens: None
) -> FileScores:
    """Teacher-force the replies in ``source`` (lines with prompt_ids, output_ids and maybe id) and save the columns.

    Raises UsageError LG0616 for a line that is not such an object, naming file and line.
    """
    jobs = _read(source)
    scorer = scorer_factory(config.scorer.engine)(
        str(resolve_model(config.model, config.folder)), config.scorer.options
    )
    try:
        scores = scorer.score(jobs, progress=progress)[0]
        vocab_size = scorer.vocab_size
    finally:
        scorer.close()
    save_scores(target, scores)
    known = np.isfinite(scores.gap) & scores.finite
    gaps = np.where(known, scores.gap, 0.0)
    order = np.argsort(-gaps, kind="stable")[:5]
    rows = np.searchsorted(scores.offsets, order, side="right") - 1
    return FileScores(
        path=str(target),
        num_requests=len(jobs),
        num_tokens=scores.num_tokens,
        num_not_best=int((scores.rank > 0).sum()),
        num_not_finite=int((~scores.finite).sum()),
        num_unknown_ids=int((scores.served_id >= vocab_size).sum()),
        mean_gap_nats=float(gaps.mean()) if scores.num_tokens else 0.0,
        max_gap_nats=float(gaps.max()) if scores.num_tokens else 0.0,
        worst=tuple(
            (scores.request_ids[row], int(at - scores.offsets[row]), float(gaps[at]))
            for row, at in zip(rows.tolist(), order.tolist(), strict=True)
        ),
    )


def _read(source: Path) -> list[ScoringJob]:
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(f"{source} cannot be read: {error}") from error
    jobs = [_job(f"{source}:{number}", number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not jobs:
        raise _bad(f"{source} holds no replies")
    return jobs


def _job(where: str, number: int, line: str) -> ScoringJob:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise _bad(f"{where} is not JSON: {error}") from error
    if not isinstance(row, Mapping):
        raise _bad(f"{where} is a {type(row).__name__}, not an object")
    for key in row:
        if key not in FIELDS:
            raise _bad(f"{where} has an unknown field {key!r}. {near_miss(key, FIELDS)}")
    prompt, reply = _ids(row, "prompt_ids", where), _ids(row, "output_ids", where)
    name = str(row.get("id", f"line-{number}"))
    request = Request(
        id=name, prompt_ids=prompt, sampling=SamplingParams(max_tokens=len(reply)), set="file", cluster=name
    )
    return ScoringJob(
        request=request,
        outputs=(ServedOutput(request_id=name, ids=reply, finish_reason=FinishReason.LENGTH),),
    )


def _ids(row: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    value = row.get(key)
    if not isinstance(value, list) or not value:
        raise _bad(f"{where} needs {key} as a non-empty list of token ids, found {value!r:.60}")
    if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in value):
        raise _bad(f"{where} has a {key} with something that is no token id")
    return tuple(value)


def _bad(found: str) -> UsageError:
    return UsageError(
        found,
        why="token forcing needs the exact ids that were asked and served; text cannot stand in for them",
        fix='write one line per reply: {"id": "a", "prompt_ids": [1, 2], "output_ids": [3, 4]}',
        code="LG0616",
    )
