"""The audit: explained only if stock serves that token; in order; resumable; stopped once the verdict is certain."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from lossguard.engines.base import Capabilities, ForcedPrefix
from lossguard.records import AuditedEvent, FinishReason, Request, SamplingParams, ServedOutput
from lossguard.stages.audit import MAX_AUDITED_REQUESTS, AuditTask, audit

SERVED, OTHER = 7, 8


@dataclass
class Script:
    """Stock as a table: (request id, position, rows in the batch) -> token; OTHER where nothing is said."""

    answers: Mapping[tuple[str, int, int], int]
    concurrency: int = 4
    forced: bool = True
    calls: list[tuple[tuple[str, ...], tuple[int, ...]]] = field(default_factory=list)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(forced_decode=self.forced, concurrency=self.concurrency)

    def fingerprint(self) -> Mapping[str, Any]:
        return {}

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        self.calls.append((tuple(row.request.id for row in batch), tuple(row.num_positions for row in batch)))
        return [
            tuple(self.answers.get((row.request.id, at, len(batch)), OTHER) for at in range(row.num_positions))
            for row in batch
        ]

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        for request in requests:
            position = len(request.prompt_ids) - 1
            token = self.answers.get((request.id, position, 1), OTHER)
            yield ServedOutput(request_id=request.id, ids=(token,), finish_reason=FinishReason.LENGTH)

    def close(self) -> None:
        """Nothing to give back."""


def task(path: Path, positions: Mapping[int, Sequence[int]], num_requests: int = 6, certain_at: int = 999) -> AuditTask:
    requests = [
        Request(id=f"r{i}", prompt_ids=(1,), sampling=SamplingParams(max_tokens=9), set="s", cluster=f"r{i}")
        for i in range(num_requests)
    ]
    outputs = [ServedOutput(request_id=r.id, ids=(SERVED,) * 9, finish_reason=FinishReason.LENGTH) for r in requests]
    events = [
        (
            index,
            [
                AuditedEvent(
                    request_id=f"r{index}", position=at, served_id=SERVED, best_id=OTHER, gap_nats=3.0, explained=None
                )
                for at in places
            ],
        )
        for index, places in positions.items()
    ]
    return AuditTask(
        requests=requests,
        outputs=outputs,
        events=events,
        path=path / "audit.jsonl",
        vocab_size=100,
        is_certain=lambda count: count >= certain_at,
    )


@pytest.mark.parametrize("rows", [4, 2, 1])
def test_any_of_the_three_replays_explains(tmp_path: Path, rows: int) -> None:
    stock = Script({("r1", 3, rows): SERVED})
    (event,) = audit(lambda: stock, task(tmp_path, {1: [3]}), lambda _n: None)
    assert event.explained is True
    assert SERVED in event.replays.values()


def test_unexplained_after_all_three(tmp_path: Path) -> None:
    stock = Script({("r1", 2, 4): SERVED})  # another position: explains nothing
    (event,) = audit(lambda: stock, task(tmp_path, {1: [3]}), lambda _n: None)
    assert event.explained is False
    assert dict(event.replays) == {"batch-4": OTHER, "batch-2": OTHER, "alone": OTHER}
    assert [ids for ids, _ in stock.calls] == [("r0", "r1", "r2", "r3"), ("r0", "r1"), ("r1",)]
    assert stock.calls[0][1] == (4, 4, 4, 4)


def test_in_order_until_one_stays_unexplained(tmp_path: Path) -> None:
    stock = Script({("r5", 1, 2): SERVED})
    events = audit(lambda: stock, task(tmp_path, {5: [1, 4, 6]}), lambda _n: None)
    assert [event.explained for event in events] == [True, False, None]
    assert events[2].reason == "after an unexplained position"


def test_stops_once_the_verdict_is_certain(tmp_path: Path) -> None:
    stock = Script({})
    events = audit(lambda: stock, task(tmp_path, {i: [2] for i in range(6)}, certain_at=2), lambda _n: None)
    assert [event.explained for event in events] == [False, False, None, None, None, None]
    assert {event.reason for event in events[2:]} == {"the verdict was certain before"}


def test_continues_where_it_stopped(tmp_path: Path) -> None:
    first, second = Script({}), Script({})
    audit(lambda: first, task(tmp_path, {0: [2], 5: [2]}), lambda _n: None)
    path = tmp_path / "audit.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert json.loads(lines[0])["explained"] is False
    path.write_bytes(lines[0] + lines[1][:-9])
    events = audit(lambda: second, task(tmp_path, {0: [2], 5: [2]}), lambda _n: None)
    assert [event.explained for event in events] == [False, False]
    assert all("r0" not in ids for ids, _ in second.calls), "what was audited is not audited again"


def test_nothing_to_audit_starts_no_engine(tmp_path: Path) -> None:
    def refuse() -> Script:
        pytest.fail("an engine was started")

    assert audit(refuse, task(tmp_path, {}), lambda _n: None) == []


def test_prefill_replay_says_that_it_is_blind(tmp_path: Path) -> None:
    stock = Script({("r1", 3, 1): SERVED}, forced=False)
    events = audit(lambda: stock, task(tmp_path, {1: [3], 2: [3]}), lambda _n: None)
    assert [event.explained for event in events] == [True, False]
    assert all("blind" in event.reason for event in events)


def test_at_most_200_requests(tmp_path: Path) -> None:
    count = MAX_AUDITED_REQUESTS + 3
    stock = Script({}, concurrency=1)
    events = audit(lambda: stock, task(tmp_path, {i: [0] for i in range(count)}, num_requests=count), lambda _n: None)
    assert sum(event.explained is False for event in events) == MAX_AUDITED_REQUESTS
    assert [event.explained for event in events[-3:]] == [None, None, None]
    assert "beyond" in events[-1].reason


def test_ids_that_do_not_exist_are_never_fed(tmp_path: Path) -> None:
    given = task(tmp_path, {0: [2], 1: [3]})
    outputs = list(given.outputs)
    outputs[0] = replace(outputs[0], ids=(SERVED, SERVED, 5000, SERVED))
    outputs[2] = replace(outputs[2], ids=(-1, SERVED))
    stock = Script({})
    events = audit(lambda: stock, replace(given, outputs=outputs), lambda _n: None)
    assert [event.explained for event in events] == [False, False]
    assert events[0].reason.startswith("no such id")
    assert events[0].replays == {}, "no replay can tell more"
    fed = [count for ids, counts in stock.calls for name, count in zip(ids, counts, strict=True) if name == "r0"]
    assert set(fed) == {3}, "its neighbours' replays end at the id that does not exist"


def test_audits_of_other_tokens_are_made_again(tmp_path: Path) -> None:
    given = task(tmp_path, {0: [2]})
    audit(lambda: Script({("r0", 2, 1): SERVED}), given, lambda _n: None)
    outputs = [replace(given.outputs[0], ids=(9, SERVED, SERVED)), *given.outputs[1:]]
    second = Script({})
    (event,) = audit(lambda: second, replace(given, outputs=outputs), lambda _n: None)
    assert event.explained is False
    assert second.calls
