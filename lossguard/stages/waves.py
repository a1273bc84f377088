"""Waves: the requests of a system in the order and at the pace that its exercise asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lossguard.engines.base import Pace, PacedEngine
from lossguard.errors import UsageError
from lossguard.exercise_plan import Exercise, make_exercise
from lossguard.records import Request

if TYPE_CHECKING:
    from lossguard.stages.workspace import Workspace

LOWER_SHARE = 10  # of the requests, one in so many is asked at each level but the highest
STAGGER_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Requests that are asked together; the next wave begins when all of them are answered."""

    requests: tuple[Request, ...]
    pace: Pace | None


def waves_as_exercised(table: Mapping[str, Any], requests: Sequence[Request]) -> list[Wave]:
    """The waves that a system's ``exercise`` asks for; none where it says nothing of when requests are sent."""
    exercise = make_exercise(table)
    return waves_of(exercise, requests) if exercise.shapes_traffic else []


def waves_of(exercise: Exercise, requests: Sequence[Request]) -> list[Wave]:
    """All requests once each. The same requests give the same waves, whatever has been answered already."""
    groups = [list(requests)]
    if exercise.repeats:
        by_repeat: dict[int, list[Request]] = {}
        for request in requests:
            by_repeat.setdefault(request.repeat_id, []).append(request)
        groups = [by_repeat[repeat] for repeat in sorted(by_repeat)]
    return [wave for group in groups for wave in _levels(exercise.concurrency, group)]


def _levels(levels: tuple[int, ...], requests: list[Request]) -> list[Wave]:
    """Lower levels take requests evenly spread over the list, so that each sees all sets; the highest the rest."""
    waves, rest = [], requests
    for level in levels[:-1]:
        count = min(len(rest), max(2 * level, len(requests) // LOWER_SHARE))
        taken = {at * len(rest) // count for at in range(count)} if count else set()
        waves.append(_wave([item for at, item in enumerate(rest) if at in taken], level))
        rest = [item for at, item in enumerate(rest) if at not in taken]
    waves.append(_wave(rest, levels[-1] if levels else None))
    return [wave for wave in waves if wave.requests]


def _wave(requests: list[Request], level: int | None) -> Wave:
    pace = None if level is None else Pace(concurrency=level, stagger_seconds=STAGGER_SECONDS)
    return Wave(requests=tuple(requests), pace=pace)


def require_exercises(workspace: Workspace) -> None:
    """Raise UsageError LG0623 for levels of concurrency on an engine that has only its own. Starts no server."""
    for system in (workspace.plan.stock, *workspace.plan.systems):
        levels = make_exercise(system.exercise).concurrency
        if levels and not isinstance(workspace.engine(system), PacedEngine):
            raise UsageError(
                f"the system {system.name!r} is to be exercised at concurrency {list(levels)}, and is no server",
                why="its engine forms its own batches, so that all levels would be the same",
                fix="leave concurrency out of its exercise; its own options (batch_size) say how it forms batches",
                code="LG0623",
            )
