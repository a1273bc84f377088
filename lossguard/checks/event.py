"""The event check: large-margin tokens that stock itself would not serve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.events import (
    FAIL_ALPHA,
    EventStatus,
    JudgedRequest,
    count_status,
    excess_p,
    judge_requests,
)
from lossguard.checks.problems import all_greedy, blocked
from lossguard.checks.table_text import plural
from lossguard.records import AuditedEvent, CheckResult, Request, Verdict

_LISTED_REQUESTS = 200
_LISTED_POSITIONS = 20
_NOTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCounts:
    """Requests with events, by what the audits know.

    For a PASS every doubt counts against the candidate (its unaudited requests as unexplained, stock's as
    explained); for a FAIL every doubt counts for it, so that FAIL rests on audited positions alone. Requests beyond
    the audit's cap are unaudited too: as the definition asks, the candidate's count as unexplained and stock's as
    explained, which can keep a PASS away but never makes a FAIL.
    """

    certain: int  # candidate, audited and unexplained
    possible: int  # candidate, the same plus unaudited
    stock_certain: int
    stock_possible: int
    num_requests: int

    @property
    def passes(self) -> bool:
        """Not above stock's even if every unaudited event of the candidate is unexplained."""
        return self.possible <= self.stock_certain

    @property
    def fail_p(self) -> float:
        """Exact conditional p with every unaudited event decided in the candidate's favour."""
        return excess_p(self.certain, self.stock_possible, self.num_requests)


class EventCheck:
    """Requests with at least one event that stock, in forced decode at that prefix, does not serve.

    Covered: rare large errors (corrupted state, wrong slot, off-by-one) down to one request.
    Not covered: errors under the threshold (rate, near-tie); with a server that can only prefill, errors of state
    that decode builds.
    """

    name: str = "event"
    covers: str = "single large errors, audited by replaying stock's own decode"
    does_not_cover: str = "errors under the large-margin threshold"

    def applies(self, requests: Sequence[Request]) -> bool:
        """Greedy requests only."""
        return all_greedy(requests)

    def run(self, given: CheckInput) -> CheckResult:
        """PASS if not above stock's, FAIL if the exact test rejects, else INCONCLUSIVE with every position."""
        if (refusal := blocked(self.name, given)) is not None:
            return refusal
        judged = judge_requests(given.candidate, given.thresholds)
        numbers = count_events(given, judged)
        verdict = Verdict.PASS if numbers.passes else Verdict.INCONCLUSIVE
        if not numbers.passes and numbers.fail_p < FAIL_ALPHA:
            verdict = Verdict.FAIL
        return _result(given, judged, numbers, verdict)


def count_events(given: CheckInput, judged: Sequence[JudgedRequest]) -> EventCounts:
    """Counts of both arms; ``judged`` is the candidate's."""
    stock = judge_requests(given.stock, given.thresholds)
    both = (EventStatus.UNEXPLAINED, EventStatus.UNAUDITED)
    return EventCounts(
        certain=count_status(judged, EventStatus.UNEXPLAINED),
        possible=count_status(judged, *both),
        stock_certain=count_status(stock, EventStatus.UNEXPLAINED),
        stock_possible=count_status(stock, *both),
        num_requests=len(given.requests),
    )


def _result(given: CheckInput, judged: Sequence[JudgedRequest], numbers: EventCounts, verdict: Verdict) -> CheckResult:
    audited = [event for event in given.candidate.audit if event.explained is not None]
    explained = sum(1 for event in audited if event.explained)
    unaudited = numbers.possible - numbers.certain
    summary = (
        f"{plural(numbers.certain, 'request')} with an unexplained event (stock {numbers.stock_certain}); "
        f"{plural(len(audited), 'position')} audited, {explained} explained"
    )
    if unaudited:
        summary += f"; {plural(unaudited, 'request')} not audited"
    if verdict is Verdict.FAIL:
        summary += f"; p = {numbers.fail_p:.2g}"
    return CheckResult(
        check="event",
        verdict=verdict,
        summary=summary,
        candidate=str(numbers.certain),
        stock=str(numbers.stock_certain),
        evidence={
            "candidate_unexplained_requests": numbers.certain,
            "candidate_unaudited_requests": unaudited,
            "stock_unexplained_requests": numbers.stock_certain,
            "stock_unaudited_requests": numbers.stock_possible - numbers.stock_certain,
            "num_requests": numbers.num_requests,
            "num_audited_positions": len(audited),
            "num_explained_positions": explained,
            "event_threshold_nats": given.thresholds.event_nats,
            "conditional_p": numbers.fail_p,
            "requests": _listed(given.candidate, judged),
        },
        notes=_notes(given.candidate, judged, verdict),
    )


def _listed(arm: Arm, judged: Sequence[JudgedRequest]) -> list[dict[str, Any]]:
    audited = {(event.request_id, event.position): event for event in arm.audit}
    rank = {EventStatus.UNEXPLAINED: 0, EventStatus.UNAUDITED: 1, EventStatus.EXPLAINED: 2}
    worst = sorted(judged, key=lambda request: (rank[request.status], request.events.request_index))
    return [
        {
            "request_id": request.events.request_id,
            "status": request.status.value,
            "num_events": len(request.events.positions),
            "positions": [
                _position(request, index, audited)
                for index in range(min(len(request.events.positions), _LISTED_POSITIONS))
            ],
        }
        for request in worst[:_LISTED_REQUESTS]
    ]


def _position(request: JudgedRequest, index: int, audited: dict[tuple[str, int], AuditedEvent]) -> dict[str, Any]:
    events = request.events
    gap, audit = events.gaps_nats[index], audited.get((events.request_id, events.positions[index]))
    return {
        "position": events.positions[index],
        "served_id": events.served_ids[index],
        "best_id": events.best_ids[index],
        "gap_nats": gap if math.isfinite(gap) else None,
        "beyond_vocabulary": math.isinf(gap),
        "explained": None if audit is None else audit.explained,
        "replays": {} if audit is None else dict(audit.replays),
        "reason": "not audited" if audit is None else audit.reason,
    }


def _notes(arm: Arm, judged: Sequence[JudgedRequest], verdict: Verdict) -> tuple[str, ...]:
    if verdict is Verdict.PASS:
        return ()
    open_requests = [request for request in _listed(arm, judged) if request["status"] != EventStatus.EXPLAINED.value]
    notes = []
    for request in open_requests if verdict is Verdict.INCONCLUSIVE else open_requests[:_NOTED]:
        decisive = [place for place in request["positions"] if place["explained"] is not True][:1]
        notes += [_sentence(request["request_id"], place) for place in decisive]
    return tuple(notes)


def _sentence(request_id: str, place: dict[str, Any]) -> str:
    gap = "an id beyond the vocabulary" if place["gap_nats"] is None else f"gap {place['gap_nats']:.3g} nats"
    replayed = ", ".join(f"{name}: {token}" for name, token in sorted(place["replays"].items()))
    stock = f"stock's own decode there serves {replayed}" if replayed else place["reason"] or "not audited"
    return (
        f"request {request_id}, position {place['position']:,}: served {place['served_id']}, best {place['best_id']}, "
        f"{gap}; {stock}"
    )
