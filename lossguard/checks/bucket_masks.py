"""Buckets: parts of the served tokens, fixed before the run, in which a fault may sit that an average hides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import Arm, BoolArray, CheckInput, FloatArray
from lossguard.checks.clusters import position_of_tokens, request_of_tokens
from lossguard.records import Request

_POSITIONS = ((0, 0), (1, 16), (17, 64), (65, 256), (257, 1024), (1025, 2048), (2049, None))
PROMPT_LENGTHS = ((0, 128), (129, 512), (513, 2048), (2049, 8192), (8193, None))
_BATCHES = ((1, 1), (2, 8), (9, 32), (33, 128), (129, None))
_BLOCK_POSITIONS = ((0, 0), (1, 2), (3, 6), (7, None))
_FLAGS = (("after_rejection", "after rejection"), ("preempted", "after preemption"), ("cached", "cache hit"))

Range = tuple[int, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Tokens of the candidate, and stock's tokens to hold them against.

    ``stock`` is None for buckets that the candidate's telemetry defines: stock has no such tokens, and a path is
    taken where the text is hard, so that stock's tokens at equal top-2 gaps stand in for them.
    """

    name: str
    candidate: BoolArray  # [T] of the candidate
    stock: BoolArray | None  # [T] of stock


def buckets(given: CheckInput) -> list[Bucket]:
    """All buckets with tokens of the candidate that are not simply all of them, in a fixed order."""
    found = [*_by_position(given), *_by_request(given), *_by_finish(given), *_by_telemetry(given)]
    return [bucket for bucket in found if bucket.candidate.any() and not bucket.candidate.all()]


def _by_position(given: CheckInput) -> Iterator[Bucket]:
    positions = [position_of_tokens(arm.scores) for arm in (given.candidate, given.stock)]
    for bounds in _POSITIONS:
        yield _bucket("output position", bounds, positions[0], positions[1])


def _by_request(given: CheckInput) -> Iterator[Bucket]:
    lengths = _per_token(given, np.array([len(request.prompt_ids) for request in given.requests]))
    for bounds in PROMPT_LENGTHS:
        yield _bucket("prompt length", bounds, lengths[0], lengths[1])
    names = [request.set for request in given.requests]
    for name in sorted(set(names)):
        inside = _per_token(given, np.array([other == name for other in names]))
        yield Bucket(name=f"prompt set {name}", candidate=inside[0], stock=inside[1])


def _per_token(given: CheckInput, values: np.ndarray) -> list[np.ndarray]:
    return [values[request_of_tokens(arm.scores)] for arm in (given.candidate, given.stock)]


def _by_finish(given: CheckInput) -> Iterator[Bucket]:
    masks = []
    for arm in (given.candidate, given.stock):
        mask = np.zeros(arm.scores.num_tokens, dtype=np.bool_)
        mask[arm.scores.offsets[1:][np.diff(arm.scores.offsets) > 0] - 1] = True
        masks.append(mask)
    yield Bucket(name="finish token", candidate=masks[0], stock=masks[1])


def _by_telemetry(given: CheckInput) -> Iterator[Bucket]:
    for column, name in _FLAGS:
        if (values := telemetry_column(given.candidate, given.requests, column)) is not None:
            started = _since_first(values, given.candidate) if column == "preempted" else values > 0
            yield Bucket(name=name, candidate=started, stock=None)
    for column, name, ranges in (
        ("batch", "batch", _BATCHES),
        ("under_way", "requests under way", _BATCHES),
        ("block_position", "block position", _BLOCK_POSITIONS),
    ):
        if (values := telemetry_column(given.candidate, given.requests, column)) is not None:
            for bounds in ranges:
                yield _bucket(name, bounds, values, None)


def telemetry_column(arm: Arm, requests: Sequence[Request], name: str) -> FloatArray | None:
    """[T] one telemetry column; NaN where a reply lacks it. None if no reply has it."""
    if not any(name in output.telemetry for output in arm.outputs[: len(requests)]):
        return None
    values = np.full(arm.scores.num_tokens, np.nan)
    for index, output in enumerate(arm.outputs):
        start, stop = arm.scores.offsets[index], arm.scores.offsets[index + 1]
        column = output.telemetry.get(name, ())
        if len(column) in (1, stop - start):
            values[start:stop] = column
    return values


def _since_first(values: FloatArray, arm: Arm) -> BoolArray:
    """From the first marked token of each reply to its end."""
    marked = np.concatenate([[0], np.cumsum(values > 0)])
    before_reply = np.repeat(marked[arm.scores.offsets[:-1]], np.diff(arm.scores.offsets))
    return np.asarray(marked[1:] > before_reply)


def _bucket(name: str, bounds: Range, candidate: np.ndarray, stock: np.ndarray | None) -> Bucket:
    low, high = bounds
    span = f"over {low - 1:,}" if high is None else (f"{low:,}" if low == high else f"{low:,}-{high:,}")

    def inside(values: np.ndarray) -> BoolArray:
        return np.asarray((values >= low) & (values <= (np.inf if high is None else high)))

    return Bucket(name=f"{name} {span}", candidate=inside(candidate), stock=None if stock is None else inside(stock))
