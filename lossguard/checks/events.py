"""Events: tokens with a gap over the large-margin threshold, and what the audit says about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from lossguard.checks.base import Arm, Thresholds
from lossguard.checks.delta import is_event
from lossguard.checks.proportions import conditional_test, counts
from lossguard.records import AuditedEvent

FAIL_ALPHA = 0.01
_LARGEST_GAP_NATS = float(np.finfo(np.float32).max)


class EventStatus(StrEnum):
    """What is known about the events of one request."""

    EXPLAINED = "explained"  # stock itself serves every one of them
    UNEXPLAINED = "unexplained"  # at least one was audited, and stock serves another token
    UNAUDITED = "unaudited"  # none is known to be unexplained, and at least one was not audited


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEvents:
    """The events of one request, in order of position."""

    request_index: int
    request_id: str
    positions: tuple[int, ...]
    served_ids: tuple[int, ...]
    best_ids: tuple[int, ...]
    gaps_nats: tuple[float, ...]  # inf for an id beyond the vocabulary


def event_positions(arm: Arm, thresholds: Thresholds) -> list[RequestEvents]:
    """Requests with events, in request order."""
    scores = arm.scores
    tokens = np.flatnonzero(is_event(scores, thresholds))
    owner = np.searchsorted(scores.offsets, tokens, side="right") - 1
    found = []
    for index in np.unique(owner):
        own = tokens[owner == index]
        found.append(
            RequestEvents(
                request_index=int(index),
                request_id=arm.outputs[index].request_id,
                positions=tuple(int(token - scores.offsets[index]) for token in own),
                served_ids=tuple(int(value) for value in scores.served_id[own]),
                best_ids=tuple(int(value) for value in scores.best_id[own]),
                gaps_nats=tuple(float(value) for value in scores.gap[own]),
            )
        )
    return found


def unaudited_events(arm: Arm, thresholds: Thresholds) -> list[tuple[int, tuple[AuditedEvent, ...]]]:
    """(request index, its events by position) with ``explained`` None: what an audit starts from.

    The gap of an id beyond the vocabulary is infinite; here it is the largest float32, because audits are JSON.
    """
    return [
        (
            events.request_index,
            tuple(
                AuditedEvent(
                    request_id=events.request_id,
                    position=position,
                    served_id=served,
                    best_id=best,
                    gap_nats=min(gap, _LARGEST_GAP_NATS),
                    explained=None,
                )
                for position, served, best, gap in zip(
                    events.positions, events.served_ids, events.best_ids, events.gaps_nats, strict=True
                )
            ),
        )
        for events in event_positions(arm, thresholds)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRequest:
    """One request's events with their status; ``first_position`` is the one that decides it."""

    events: RequestEvents
    status: EventStatus
    first_position: int


def judge_requests(arm: Arm, thresholds: Thresholds) -> list[JudgedRequest]:
    """Status of every request with events, from the arm's audit."""
    audited = {(event.request_id, event.position): event for event in arm.audit}
    return [_judge(events, audited) for events in event_positions(arm, thresholds)]


def _judge(events: RequestEvents, audited: Mapping[tuple[str, int], AuditedEvent]) -> JudgedRequest:
    found = [audited.get((events.request_id, position)) for position in events.positions]
    answers = [None if event is None else event.explained for event in found]
    for wanted, status in ((False, EventStatus.UNEXPLAINED), (None, EventStatus.UNAUDITED)):
        if wanted in answers:
            return JudgedRequest(events=events, status=status, first_position=events.positions[answers.index(wanted)])
    return JudgedRequest(events=events, status=EventStatus.EXPLAINED, first_position=events.positions[0])


def count_status(judged: Sequence[JudgedRequest], *statuses: EventStatus) -> int:
    """Number of requests whose status is one of these."""
    return sum(1 for request in judged if request.status in statuses)


def excess_p(num_candidate: int, num_stock: int, num_requests: int) -> float:
    """Exact conditional p for 'requests with an unexplained event are not more frequent than stock's'."""
    return float(conditional_test(counts(num_candidate, num_requests, num_stock, num_requests)))


def fail_is_certain(num_candidate_unexplained: int, num_stock_events: int, num_requests: int) -> bool:
    """Whether the event check fails whatever further audits say, so that the audit may stop.

    Takes the candidate's requests known to be unexplained, and *all* of stock's requests with events, as if every
    one of them were unexplained. Both arms serve the same ``num_requests``.
    """
    return excess_p(num_candidate_unexplained, num_stock_events, num_requests) < FAIL_ALPHA
