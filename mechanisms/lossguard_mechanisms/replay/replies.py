"""Prompts and replies to record: from a run folder, or put together from requests and the tokens that answered them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lossguard.records import FinishReason, Request
from lossguard.run_folder import RunFolder, read_outputs
from lossguard_mechanisms.replay.failures import unusable_replies, unusable_run
from lossguard_mechanisms.replay.recording import IntArray, Replies

_LEAST_PROMPT = 2  # the token before the anchor is the first that a drafter has features of


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledReplies:
    """Replies, how they were sampled, and what was left out."""

    replies: Replies
    temperature: float
    seed: int
    notes: tuple[str, ...] = ()


def replies_of(requests: Sequence[Request], tokens: Mapping[str, Sequence[int]]) -> Replies:
    """Replies by request id, in the order of ``requests``.

    Raises UsageError LG1610 for a prompt of fewer than two tokens, an empty reply, or nothing at all.
    """
    if not requests:
        raise unusable_replies("there is no request")
    for request in requests:
        if len(request.prompt_ids) < _LEAST_PROMPT:
            raise unusable_replies(f"the prompt of {request.id!r} has {len(request.prompt_ids)} tokens")
        if not tokens[request.id]:
            raise unusable_replies(f"the reply to {request.id!r} is empty")
    answers = [tokens[request.id] for request in requests]
    return Replies(
        request_ids=tuple(request.id for request in requests),
        sets=tuple(request.set for request in requests),
        clusters=tuple(request.cluster for request in requests),
        prompt_ids=_joined(request.prompt_ids for request in requests),
        prompt_offsets=_offsets(len(request.prompt_ids) for request in requests),
        reply_ids=_joined(answers),
        reply_offsets=_offsets(len(answer) for answer in answers),
    )


def replies_of_run(folder: Path, system: str, *, max_requests: int | None = None) -> SampledReplies:
    """The replies of one system of a run. Empty ones are left out, with a note.

    Raises UsageError LG1612 where replies are missing, cut off, or sampled with parameters that change the choice of
    tokens or in different ways.
    """
    run = RunFolder.open(folder)
    requests = run.read_requests("requests.jsonl")
    outputs, notes = read_outputs(folder / system / "outputs.jsonl", repair=False)
    if not outputs:
        raise unusable_run(folder, f"there are none of a system {system!r}")
    answered = [request for request in requests if request.id in outputs]
    if len(answered) < len(requests):
        notes = [*notes, f"{len(requests) - len(answered)} requests of the run have no reply and are left out"]
    kept = [request for request in answered if outputs[request.id].ids]
    if len(kept) < len(answered):
        notes = [*notes, f"{len(answered) - len(kept)} replies without tokens are left out"]
    kept = kept[:max_requests]
    _require_plain(folder, kept)
    aborted = [request.id for request in kept if outputs[request.id].finish_reason is FinishReason.ABORT]
    if aborted:
        raise unusable_run(folder, f"{len(aborted)} were cut off, {aborted[0]!r} first")
    return SampledReplies(
        replies=replies_of(kept, {name: output.ids for name, output in outputs.items()}),
        temperature=kept[0].sampling.temperature,
        seed=kept[0].sampling.seed or 0,
        notes=tuple(notes),
    )


def _require_plain(folder: Path, requests: Sequence[Request]) -> None:
    if not requests:
        raise unusable_run(folder, "no reply has any token")
    constrained = [request for request in requests if request.sampling.replayed_parameters()]
    if constrained:
        names = ", ".join(constrained[0].sampling.replayed_parameters())
        raise unusable_run(folder, f"request {constrained[0].id!r} was sampled with {names}")
    ways = {(one.sampling.temperature, one.sampling.seed) for one in requests}
    if len({temperature for temperature, _ in ways}) > 1:
        raise unusable_run(folder, "requests were sampled at different temperatures")


def _joined(parts: Iterable[Sequence[int]]) -> IntArray:
    return np.array([token for part in parts for token in part], dtype=np.int64)


def _offsets(lengths: Iterable[int]) -> IntArray:
    return np.concatenate([[0], np.cumsum(list(lengths))]).astype(np.int64)
