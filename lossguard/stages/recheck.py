"""One position looked at again: scored afresh, and served again by stock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lossguard.engines.base import Engine
from lossguard.errors import UsageError, near_miss
from lossguard.listener import SilentListener
from lossguard.plan_file import plan_from_json
from lossguard.records import ForcedScores, Request, ServedOutput
from lossguard.run_folder import RunFolder, only_process, read_outputs
from lossguard.scoring.base import ScoringJob
from lossguard.stages.audit import forced_rows, legal_prefix
from lossguard.stages.validation import scorable
from lossguard.stages.workspace import Workspace, prepare_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """What the request's own sampling says about one served token."""

    temperature: float
    probability: float
    is_allowed: bool
    outside_nats: float | None  # by how much differences of logits would have to be off; None: whatever they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """What the target says about one served token, and what stock serves there now."""

    request_id: str
    position: int
    candidate: str
    served_id: int
    served_text: str
    best_id: int
    best_text: str
    gap_nats: float | None
    rank: int
    top: tuple[tuple[int, str, float], ...]  # (id, text, logit), best first
    context: str  # the last tokens before the position, as text
    replays: Mapping[str, int]  # configuration -> token that stock serves there
    sampling: SampledToken | None = None  # of sampled replies, where the scorer gives distributions

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One served token among all the replies of its run."""

    candidate: str
    requests: tuple[Request, ...]
    outputs: Mapping[str, ServedOutput]
    index: int  # of the request
    position: int

    @property
    def request(self) -> Request:
        """The request whose reply holds the token."""
        return self.requests[self.index]

    @property
    def output(self) -> ServedOutput:
        """The reply that holds the token."""
        return self.outputs[self.request.id]


def recheck(run_folder: Path, *, request_id: str, position: int, candidate: str | None = None) -> Recheck:
    """Score one served token of a run again and replay it on stock, alone and among its neighbours.

    ``candidate`` may be left out where the run has one. Raises UsageError LG0615 for an unknown request,
    candidate or position.
    """
    folder = RunFolder.open(run_folder)
    plan = plan_from_json(folder.read_json("plan.json"), run_folder)
    workspace = Workspace(plan=plan, folder=folder, listener=SilentListener())
    with only_process(folder):
        return _recheck(workspace, request_id, position, candidate)


def _recheck(workspace: Workspace, request_id: str, position: int, candidate: str | None) -> Recheck:
    plan, folder = workspace.plan, workspace.folder
    try:
        requests = prepare_requests(workspace).test
        name = _candidate(plan.config.systems, [system.name for system in plan.systems], candidate)
        outputs, _notes = read_outputs(folder.path / name / "outputs.jsonl", repair=False)
        place = Place(
            candidate=name,
            requests=requests,
            outputs=outputs,
            index=_find(requests, outputs, request_id, position),
            position=position,
        )
        return _look(workspace, place)
    finally:
        workspace.close()


def _candidate(systems: Mapping[str, object], candidates: list[str], asked: str | None) -> str:
    if asked is None and len(candidates) == 1:
        return candidates[0]
    if asked is None or asked not in systems:
        raise _unknown(f"the run's candidates are {', '.join(candidates)}; asked: {asked!r}")
    return asked


def _find(requests: tuple[Request, ...], outputs: Mapping[str, ServedOutput], request_id: str, position: int) -> int:
    if request_id not in outputs:
        raise _unknown(f"the run has no reply to a request {request_id!r}. {near_miss(request_id, outputs)[:200]}")
    output = outputs[request_id]
    if not 0 <= position < len(output.ids):
        raise _unknown(f"the reply to {request_id} has {len(output.ids)} tokens, so no position {position}")
    return next(index for index, request in enumerate(requests) if request.id == request_id)


def _look(workspace: Workspace, place: Place) -> Recheck:
    output, position = place.output, place.position
    scores = workspace.scorer().score([ScoringJob(request=place.request, outputs=(scorable(output),))])[0]
    text = workspace.text_of
    gap = float(scores.gap[position])
    best = int(scores.best_id[position])
    top = zip(scores.top_ids[position].tolist(), scores.top_logits[position].tolist(), strict=True)
    return Recheck(
        request_id=output.request_id,
        position=position,
        candidate=place.candidate,
        served_id=output.ids[position],
        served_text=text(output.ids[position]),
        best_id=best,
        best_text=text(best),
        gap_nats=gap if gap < float("inf") else None,
        rank=int(scores.rank[position]),
        top=tuple((token, text(token), logit) for token, logit in top),
        context=text(*output.ids[max(0, position - 20) : position]),
        replays=_replays(workspace, place) if place.request.sampling.is_greedy else {},  # another draw shows nothing
        sampling=_sampled_token(scores, place),
    )


def _sampled_token(scores: ForcedScores, place: Place) -> SampledToken | None:
    if scores.sampled_logprob is None or scores.support_gap is None or place.request.sampling.is_greedy:
        return None
    gap = float(scores.support_gap[place.position])
    return SampledToken(
        temperature=place.request.sampling.temperature,
        probability=math.exp(float(scores.sampled_logprob[place.position])),
        is_allowed=gap == 0.0,
        outside_nats=gap if math.isfinite(gap) else None,
    )


def _replays(workspace: Workspace, place: Place) -> dict[str, int]:
    engine = workspace.engine(workspace.plan.stock)
    if not engine.capabilities.forced_decode:
        return {}
    concurrency = max(1, engine.capabilities.concurrency)
    return {
        "alone" if size == 1 else f"batch-{size}": _served_in_batch(engine, place, size, workspace.vocab_size)
        for size in dict.fromkeys((1, concurrency, max(1, concurrency // 2)))
    }


def _served_in_batch(engine: Engine, place: Place, size: int, vocab_size: int) -> int:
    first = place.index - place.index % size
    neighbours = place.requests[first : first + size]
    missing = [request.id for request in neighbours if request.id not in place.outputs]
    if missing:
        raise _unknown(f"the run is not finished: no reply to {missing[0]!r}, a neighbour in a batch of {size}")
    replies = [place.outputs[request.id].ids for request in neighbours]
    batch = [
        legal_prefix(request, ids, min(place.position + 1, len(ids)), vocab_size)
        for request, ids in zip(neighbours, replies, strict=True)
    ]
    row = forced_rows(engine, batch)[place.index - first]
    return row[place.position] if place.position < len(row) else -1


def _unknown(found: str) -> UsageError:
    return UsageError(
        found,
        why="a position can only be looked at again in a run that served it",
        fix="take request and position from the run's report.json or audit.jsonl",
        code="LG0615",
    )
