"""One prefix tree per scoring job: what all arms read is run once, and every arm's own tail from there.

A node holds input tokens; its outputs are the hidden states after each of them. Output ``j`` of a reply (the state that
predicts ``reply[j]``) follows the input ``(prompt + reply)[len(prompt) + j - 1]``, so the last served token is never an
input, and the position at which two replies part is one output scored for two served ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lossguard.errors import ScorerError
from lossguard.scoring.base import ScoringJob

IntArray = NDArray[np.int64]

MIN_SHARED_TOKENS: Final = 16
"""Below the first fork, arms share a further segment only if it is at least this long: a pass of its own costs more
than running so few tokens twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One arm's reply, cut after the first id that cannot be embedded: nothing behind it can be scored."""

    ids: IntArray  # [n]
    first_slot: int  # where its first token goes in the score sheet


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A segment of input tokens with its outputs to score, and the segments that continue it."""

    tokens: IntArray  # [n] inputs
    output_index: IntArray  # [m] which of the n outputs each scored row reads
    served: IntArray  # [m] the served id scored there
    slots: IntArray  # [s] places in the score sheet, several for a row that arms share
    slot_rows: IntArray  # [s] the scored row that each of them gets
    sampling: int  # index of the request's sampling parameters in the plan
    children: tuple[Node, ...]
    position: IntArray  # [m] place of each scored row in its reply
    reply: IntArray  # the longest reply through here: what stands before each row is its beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Reply positions ``start:stop`` of the segment's outputs (output ``j`` predicts ``reply[j]``)."""

    start: int
    stop: int


def check_job(job: ScoringJob, num_embeddings: int) -> None:
    """Raise ScorerError for a prompt that cannot be run."""
    prompt = job.request.prompt_ids
    if not prompt:
        raise _bad_prompt(job, "has no prompt token", "give every prompt at least a beginning-of-sequence token")
    if min(prompt) < 0 or max(prompt) >= num_embeddings:
        found = f"has a prompt token outside 0..{num_embeddings - 1}"
        raise _bad_prompt(job, found, "tokenize the prompts with the tokenizer of the scored model")


def cut_reply(ids: Sequence[int], first_slot: int, num_embeddings: int) -> Reply:
    """The scorable part of a reply: up to and including the first id that has no embedding."""
    array = np.asarray(ids, dtype=np.int64)
    bad = np.flatnonzero((array < 0) | (array >= num_embeddings))
    return Reply(ids=array[: bad[0] + 1] if len(bad) else array, first_slot=first_slot)


def build_roots(prompt: Sequence[int], replies: Sequence[Reply], sampling: int, *, share: bool) -> list[Node]:
    """The trees of one job: a single one if prefixes are shared, else one per arm. Empty replies need none."""
    alive = [reply for reply in replies if len(reply.ids)]
    groups = [alive] if share and alive else [[reply] for reply in alive]
    return [_grow(np.asarray(prompt, dtype=np.int64), group, 0, sampling) for group in groups]


def nested_groups(replies: Sequence[Reply]) -> list[list[Reply]]:
    """Replies in groups within which all inputs are the beginning of the longest reply's.

    The tree of such a group never forks: one pass scores all of it, and no cache is needed.
    """
    groups: list[list[Reply]] = []
    for reply in sorted(replies, key=lambda reply: len(reply.ids), reverse=True):
        inputs = reply.ids[:-1]
        home = next((group for group in groups if np.array_equal(group[0].ids[: len(inputs)], inputs)), None)
        if home is None:
            groups.append([reply])
        else:
            home.append(reply)
    return groups


def _grow(head: IntArray, replies: list[Reply], start: int, sampling: int) -> Node:
    """A node of all outputs from ``start`` that these replies share; ``head`` are inputs before its reply tokens.

    ``head`` is the prompt for a root and empty below, where the token that parts the replies is the first input.
    """
    stop = _common_stop(replies, start)
    longest = max(replies, key=lambda reply: len(reply.ids))
    first_input = start if len(head) else start - 1
    tokens = np.concatenate([head, longest.ids[first_input : stop - 1]])
    children = [node for group in _groups_by_next(replies, stop) for node in _grow_children(group, stop, sampling)]
    return _node(tokens, replies, _Span(start=start, stop=stop), sampling, tuple(children))


def _grow_children(group: list[Reply], start: int, sampling: int) -> list[Node]:
    empty = np.zeros(0, dtype=np.int64)
    stop = _common_stop(group, start)
    ends_here = all(len(reply.ids) <= stop for reply in group)
    if ends_here or stop - start >= MIN_SHARED_TOKENS:
        return [_grow(empty, group, start, sampling)]
    return [_grow(empty, same, start, sampling) for same in _groups_of_equal_inputs(group)]


def _common_stop(replies: list[Reply], start: int) -> int:
    """One past the last output that all replies that still have inputs share (a reply that ends parts nothing)."""
    lengths = sorted({len(reply.ids) for reply in replies})
    position = start
    for length in lengths:
        alive = [reply.ids[:length] for reply in replies if len(reply.ids) >= length]
        inputs = np.stack([ids[position : length - 1] for ids in alive]) if length - 1 > position else None
        if inputs is not None:
            same = (inputs == inputs[0]).all(axis=0)
            if not same.all():
                return position + int(np.argmin(same)) + 1
            position = length - 1
    return max(lengths[-1], start)


def _groups_by_next(replies: list[Reply], stop: int) -> list[list[Reply]]:
    """Replies with outputs at ``stop`` and behind, grouped by the input that leads there."""
    groups: dict[int, list[Reply]] = {}
    for reply in replies:
        if len(reply.ids) > stop:
            groups.setdefault(int(reply.ids[stop - 1]), []).append(reply)
    return [groups[token] for token in sorted(groups)]


def _groups_of_equal_inputs(replies: list[Reply]) -> list[list[Reply]]:
    groups: dict[bytes, list[Reply]] = {}
    for reply in replies:
        groups.setdefault(reply.ids[:-1].tobytes(), []).append(reply)
    return [groups[key] for key in sorted(groups)]


def _node(tokens: IntArray, replies: list[Reply], span: _Span, sampling: int, children: tuple[Node, ...]) -> Node:
    positions = [np.arange(span.start, min(span.stop, len(reply.ids)), dtype=np.int64) for reply in replies]
    position = np.concatenate(positions)
    served = np.concatenate([reply.ids[rows] for reply, rows in zip(replies, positions, strict=True)])
    slots = np.concatenate([reply.first_slot + rows for reply, rows in zip(replies, positions, strict=True)])
    key = (position << 32) + served  # served ids fit 32 bits
    _, first, slot_rows = np.unique(key, return_index=True, return_inverse=True)
    return Node(
        tokens=tokens,
        output_index=position[first] - span.stop + len(tokens),
        served=served[first],
        slots=slots,
        slot_rows=slot_rows,
        sampling=sampling,
        children=children,
        position=position[first],
        reply=max(replies, key=lambda reply: len(reply.ids)).ids,
    )


def _bad_prompt(job: ScoringJob, found: str, fix: str) -> ScorerError:
    return ScorerError(
        f"request {job.request.id!r} {found}",
        why="there is no hidden state to score its reply from",
        fix=fix,
        code="LG0502",
    )
