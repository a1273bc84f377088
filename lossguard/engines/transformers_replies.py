"""From the columns that ``generate`` returned to served outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lossguard.engines.transformers_observers import ArrivalClock, LogprobRecorder
from lossguard.errors import EngineError
from lossguard.records import FinishReason, Request, ServedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """One served batch as observed."""

    requests: tuple[Request, ...]
    columns: Sequence[Sequence[int]]  # [B][T] generated ids; rows that ended early are padded
    stop_ids: frozenset[int]
    sent_ns: int
    clock: ArrivalClock
    recorder: LogprobRecorder | None
    drafted: tuple[int, ...] | None  # per step; None for plain decoding


def to_outputs(record: BatchRecord) -> list[ServedOutput]:
    """One output per request. Raises EngineError LG0210 for a reply that ended for no reason."""
    return [_output(record, row) for row in range(len(record.requests))]


def _output(record: BatchRecord, row: int) -> ServedOutput:
    request = record.requests[row]
    ids, finish, stop_reason = _ended(record, row)
    return ServedOutput(
        request_id=request.id,
        ids=ids,
        finish_reason=finish,
        stop_reason=stop_reason,
        sent_ns=record.sent_ns,
        arrival_ns=tuple(record.clock.arrival_ns[: len(ids)]),
        logprobs=None if record.recorder is None else record.recorder.row(row, len(ids)),
        telemetry=_telemetry(record, len(ids)),
    )


def _ended(record: BatchRecord, row: int) -> tuple[tuple[int, ...], FinishReason, int | str | None]:
    """Ids up to and with the token that ended the reply, and what ended it: a stop id, a stop string or the limit."""
    request, column = record.requests[row], record.columns[row]
    by_id = next((at + 1 for at, token in enumerate(column) if token in record.stop_ids), None)
    string_end, string = record.clock.string_ends.get(row, (None, None))
    if by_id is not None and (string_end is None or by_id <= string_end):
        return tuple(column[:by_id]), FinishReason.STOP, column[by_id - 1]
    if string_end is not None:
        return tuple(column[:string_end]), FinishReason.STOP, string
    if len(column) == request.sampling.max_tokens:
        return tuple(column), FinishReason.LENGTH, None
    raise EngineError(
        f"the reply to {request.id!r} ended after {len(column)} of {request.sampling.max_tokens} tokens for no reason",
        why="a reply without an end cannot be judged",
        fix="report this with the transformers version; the replies served before are kept",
        code="LG0210",
    )


def _telemetry(record: BatchRecord, num_tokens: int) -> dict[str, tuple[float, ...]]:
    telemetry: dict[str, tuple[float, ...]] = {"batch": (float(len(record.requests)),)}
    if record.drafted is None:
        return telemetry
    starts = record.clock.block_starts
    if len(record.drafted) != len(starts):
        raise AssertionError(f"{len(record.drafted)} drafts were seen in {len(starts)} steps")
    sizes = [end - start for start, end in zip(starts, [*starts[1:], num_tokens], strict=True)]
    accepted = [size - 1 for size in sizes]
    rejected_before = [False, *(have < drawn for have, drawn in zip(accepted[:-1], record.drafted[:-1], strict=True))]
    telemetry["drafts"] = (float(sum(record.drafted)),)
    telemetry["accepted"] = (float(sum(accepted)),)
    telemetry["steps"] = (float(len(starts)),)
    telemetry["block_position"] = tuple(float(at) for size in sizes for at in range(size))
    telemetry["after_rejection"] = tuple(
        float(flag) for size, flag in zip(sizes, rejected_before, strict=True) for _ in range(size)
    )
    return telemetry
