"""Audit of events: does stock itself serve that token there?

Per request, in order, until one position stays unexplained. Three replays on stock by forced decode: with the
neighbours of the run (request order, run's concurrency), at half of it, and alone. A position is explained only
if stock serves that very token in one of them. An engine that cannot do forced decode is asked for one token
after prompt + prefix instead: blind to state built by decode, and the evidence says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lossguard.engines.base import Engine, ForcedPrefix
from lossguard.errors import EngineError
from lossguard.records import AuditedEvent, Request, ServedOutput
from lossguard.run_folder import append_line, read_audit
from lossguard.stages.serving import answers

MAX_AUDITED_REQUESTS = 200
NO_SUCH_ID = "no such id: no model can serve it"
BLIND = "prefill replay only: blind to state built by decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTask:
    """Events of one arm, as found by the event check's own arithmetic (unaudited), grouped by request index."""

    requests: Sequence[Request]
    outputs: Sequence[ServedOutput]
    events: Sequence[tuple[int, Sequence[AuditedEvent]]]  # (request index, its events by position)
    path: Path
    vocab_size: int
    is_certain: Callable[[int], bool]  # number of unexplained requests so far -> no audit can change the verdict


def audit(engine: Callable[[], Engine], task: AuditTask, progress: Callable[[int], None]) -> list[AuditedEvent]:
    """All events with their audit; those left out say why (``explained`` None).

    Saved line by line in ``task.path``; a later call continues from there.
    """
    done = {(event.request_id, event.position): event for event in read_audit(task.path)}
    rows = [
        _Row(index, [_known(event, task.outputs[index].ids, task.vocab_size) for event in events])
        for index, events in task.events[:MAX_AUDITED_REQUESTS]
    ]
    for row in rows:
        row.settle(done)
    open_rows = [row for row in rows if row.is_open]
    if open_rows:
        _run(engine(), task, rows, progress)
    beyond = f"beyond the first {MAX_AUDITED_REQUESTS} requests with events"
    result = [event for row in rows for event in row.result()]
    result += [replace(event, reason=beyond) for _, events in task.events[MAX_AUDITED_REQUESTS:] for event in events]
    return result


def _known(event: AuditedEvent, ids: Sequence[int], vocab_size: int) -> AuditedEvent:
    exists = 0 <= ids[event.position] < vocab_size
    return replace(with_prefix_hash(event, ids), reason="" if exists else NO_SUCH_ID)


@dataclass
class _Row:
    """One request's events and where the audit stands in them."""

    index: int
    events: list[AuditedEvent]
    at: int = 0
    decoded: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return self.at < len(self.events) and not self.is_unexplained

    @property
    def is_unexplained(self) -> bool:
        return any(event.explained is False for event in self.events[: self.at])

    @property
    def position(self) -> int:
        return self.events[self.at].position

    def settle(self, done: dict[tuple[str, int], AuditedEvent]) -> None:
        """Take over what an earlier call has audited."""
        while self.is_open and (saved := done.get((self.events[self.at].request_id, self.position))) is not None:
            if not same_tokens(saved, self.events[self.at]):
                return
            self.events[self.at] = saved
            self.at += 1

    def decide(self, reason: str) -> AuditedEvent:
        """Close the current position from what has been decoded."""
        event = self.events[self.at]
        replays = {
            name: tokens[event.position] for name, tokens in self.decoded.items() if len(tokens) > event.position
        }
        explained = event.served_id in replays.values() if replays or event.reason == NO_SUCH_ID else None
        why = event.reason or (reason if replays else "stock gave no token there")
        self.events[self.at] = replace(event, explained=explained, replays=replays, reason=why)
        self.at += 1
        return self.events[self.at - 1]

    def serves_it(self) -> bool:
        """Whether no replay is needed: one so far has served the token, or no model can."""
        return self.events[self.at].reason == NO_SUCH_ID or any(
            len(tokens) > self.position and tokens[self.position] == self.events[self.at].served_id
            for tokens in self.decoded.values()
        )

    def result(self) -> Iterator[AuditedEvent]:
        """Events; positions after an unexplained one need no audit, the rest say that they were not reached."""
        reason = "after an unexplained position" if self.is_unexplained else "the verdict was certain before"
        for number, event in enumerate(self.events):
            yield event if number < self.at else replace(event, reason=reason)


def _run(engine: Engine, task: AuditTask, rows: Sequence[_Row], progress: Callable[[int], None]) -> None:
    concurrency = max(1, engine.capabilities.concurrency)
    window = concurrency if engine.capabilities.forced_decode else len(task.requests)
    for first in range(0, len(task.requests), window):
        if task.is_certain(sum(row.is_unexplained for row in rows)):
            return
        inside = [row for row in rows if first <= row.index < first + window]
        while open_rows := [row for row in inside if row.is_open]:
            for row in _replayed(engine, task, open_rows, concurrency):
                append_line(task.path, row.decide("" if engine.capabilities.forced_decode else BLIND).to_json())
                progress(1)
                if task.is_certain(sum(other.is_unexplained for other in rows)):
                    return


def _replayed(engine: Engine, task: AuditTask, rows: Sequence[_Row], concurrency: int) -> Iterator[_Row]:
    """Yield rows as soon as all their replays are in; a token that stock served needs no further replay."""
    if not engine.capabilities.forced_decode:
        _prefill(engine, task, [row for row in rows if not row.serves_it()])
        yield from rows
        return
    for size in dict.fromkeys((concurrency, max(1, concurrency // 2))):
        if size > 1:
            _decode_batches(engine, task, [row for row in rows if not row.serves_it()], size)
    for row in rows:
        if not row.serves_it():
            row.decoded["alone"] = forced_rows(engine, [_prefix(task, row.index, row.position + 1)])[0]
        yield row


def _decode_batches(engine: Engine, task: AuditTask, rows: Sequence[_Row], size: int) -> None:
    for first in range(0, len(task.requests), size):
        inside = {row.index: row for row in rows if first <= row.index < first + size}
        if not inside:
            continue
        limit = 1 + max(row.position for row in inside.values())
        indices = range(first, min(first + size, len(task.requests)))
        batch = [_prefix(task, index, min(limit, len(task.outputs[index].ids))) for index in indices]
        for index, tokens in zip(indices, forced_rows(engine, batch), strict=True):
            if index in inside:
                inside[index].decoded[f"batch-{size}"] = tokens


def _prefix(task: AuditTask, index: int, num_positions: int) -> ForcedPrefix:
    return legal_prefix(task.requests[index], task.outputs[index].ids, num_positions, task.vocab_size)


def legal_prefix(request: Request, ids: Sequence[int], num_positions: int, vocab_size: int) -> ForcedPrefix:
    """A prefix that an engine can be fed: it ends at the first id that does not exist, which is never fed."""
    first = next((at for at, token in enumerate(ids) if not 0 <= token < vocab_size), len(ids))
    legal = (*ids[:first], 0) if first < len(ids) else tuple(ids)
    return ForcedPrefix(request=request, served_ids=legal, num_positions=min(num_positions, len(legal)))


def forced_rows(engine: Engine, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
    """``engine.forced_decode`` with its answer checked. Raises EngineError LG0620 for missing rows or tokens."""
    rows = engine.forced_decode(batch)
    if [len(row) for row in rows] != [prefix.num_positions for prefix in batch]:
        raise EngineError(
            f"forced decode of {len(batch)} prefixes gave {len(rows)} rows of lengths {[len(row) for row in rows][:8]}",
            why="an event counts as unexplained only where stock has really served another token",
            fix="let forced_decode return one token per visited position of every prefix",
            code="LG0620",
        )
    return rows


def same_tokens(saved: AuditedEvent, event: AuditedEvent) -> bool:
    """Whether a saved audit was made for these very tokens."""
    return saved.prefix_hash == event.prefix_hash and saved.served_id == event.served_id


def with_prefix_hash(event: AuditedEvent, ids: Sequence[int]) -> AuditedEvent:
    """The event bound to the reply up to and with its position."""
    data = ",".join(str(token) for token in ids[: event.position + 1])
    return replace(event, prefix_hash=hashlib.blake2b(data.encode(), digest_size=8).hexdigest())


def _prefill(engine: Engine, task: AuditTask, rows: Sequence[_Row]) -> None:
    by_id = {}
    for row in rows:
        request = task.requests[row.index]
        prefix = task.outputs[row.index].ids[: row.position]
        one_token = replace(request.sampling, max_tokens=1, min_tokens=0)
        asked = replace(request, prompt_ids=request.prompt_ids + prefix, sampling=one_token)
        by_id[request.id] = (row, asked)
    for name, output in answers(engine, [asked for _, asked in by_id.values()]).items():
        row = by_id[name][0]
        # positions before the replayed one were not replayed: -1 is no token
        row.decoded["prefill"] = (-1,) * row.position + output.ids[:1]
