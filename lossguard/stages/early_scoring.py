"""Scoring that overlaps serving: finished requests are scored while the rest of them is still being served.

Only where the two share no device, and the system is a process of its own. What is scored together depends on the
requests alone, never on the order in which replies arrive, so that a run that was interrupted gives the same scores.
The shards appear in the run folder as if they had been scored afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lossguard.config import SystemConfig
from lossguard.records import Request, ServedOutput
from lossguard.scoring.base import Scorer
from lossguard.seals import is_sealed
from lossguard.stages.devices import held_devices, overlaps, scorer_devices, tells_devices
from lossguard.stages.forcing import (
    SHARD_REQUESTS,
    ForcingTask,
    pieces_of,
    save_shard,
    saved_scores,
    score_piece,
    shard_paths,
    windows,
)
from lossguard.stages.workspace import Workspace

PIECE_REQUESTS = 24
"""Scored in one call while others are served: small, so that little is left to do once the last reply is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Whether scoring overlaps serving, and why."""

    is_on: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Early:
    """What serving tells the early scoring, and what scoring asks of it; without one, nothing happens."""

    heard: Callable[[ServedOutput], None] = lambda _output: None
    wait: Callable[[int], None] = lambda _shard: None
    piece_requests: int = SHARD_REQUESTS


def overlap_of(workspace: Workspace, system: SystemConfig) -> Overlap:
    """Decided by the configuration alone, so that a resumed run decides alike."""
    engine = workspace.engine(system)
    if not tells_devices(engine):
        return Overlap(is_on=False, reason=f"{system.name} may run in this process, or on the scorer's device")
    if overlaps(scorer_devices(workspace.plan.config.scorer), held_devices(engine)):
        return Overlap(is_on=False, reason=f"{system.name} and the scorer share a device")
    return Overlap(is_on=True, reason=f"{system.name} and the scorer share no device")


def stems_of(workspace: Workspace, system: SystemConfig) -> list[Path]:
    """Where the scores of (stock, candidate) go."""
    folder = workspace.folder.system(system.name)
    return [folder / "stock-scores", folder / "scores"]


@contextmanager
def early_scoring(
    workspace: Workspace, system: SystemConfig, requests: Sequence[Request], stock_outputs: Sequence[ServedOutput]
) -> Iterator[Early]:
    """While this is open, replies that are heard of are scored beside stock's, if nothing speaks against it."""
    if workspace.is_offline:
        yield Early()
        return
    overlap = overlap_of(workspace, system)
    workspace.folder.log(f"scoring {'overlaps serving' if overlap.is_on else 'follows serving'}: {overlap.reason}")
    if not overlap.is_on:
        yield Early()
        return
    task = ForcingTask(
        run=workspace.folder.path,
        requests=requests,
        arms=[stock_outputs],
        stems=stems_of(workspace, system),
        piece_requests=PIECE_REQUESTS,
    )
    if all(_is_scored(task, number) for number in range(len(windows(len(requests))))):
        yield Early(piece_requests=PIECE_REQUESTS)
        return
    background = EarlyScoring(task, workspace.scorer())
    try:
        yield Early(heard=background.heard, wait=background.wait, piece_requests=PIECE_REQUESTS)
    finally:
        background.close()


class EarlyScoring:
    """A thread that scores shard after shard as soon as its replies are there. ``task.arms`` are the other arms."""

    def __init__(self, task: ForcingTask, scorer: Scorer) -> None:
        self._task = task
        self._scorer = scorer
        self._outputs: dict[str, ServedOutput] = {}
        self._changed = threading.Condition()
        self._is_stopped = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="lossguard-scoring")
        self._shards = [self._pool.submit(self._score, number) for number in range(len(windows(len(task.requests))))]

    def heard(self, output: ServedOutput) -> None:
        """A reply is on disk."""
        with self._changed:
            self._outputs[output.request_id] = output
            self._changed.notify()

    def wait(self, number: int) -> None:
        """Until a shard is scored. Raises what the scorer raised. All of its replies must have been heard of."""
        self._shards[number].result()

    def close(self) -> None:
        """Score no further piece; the one under way is waited for."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _score(self, number: int) -> None:
        """Afterwards the shard is on disk and of these replies, or scoring was stopped."""
        task = self._task
        paths, window = shard_paths(task.stems, len(task.requests), number), windows(len(task.requests))[number]
        requests, arms = task.requests[window], [arm[window] for arm in task.arms]
        if _is_scored(task, number):
            served = self._served(requests)
            if served is None or saved_scores(task.run, paths, [*arms, served]) is not None:
                return
        pieces = []
        for part in pieces_of(len(requests), task.piece_requests):
            served = self._served(requests[part])
            if served is None:
                return
            pieces.append(score_piece(self._scorer, requests[part], [*(arm[part] for arm in arms), served], _silent))
        save_shard(task.run, paths, pieces)

    def _served(self, requests: Sequence[Request]) -> list[ServedOutput] | None:
        """The replies to these requests once all are there; None if scoring is to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or all(item.id in self._outputs for item in requests))
            return None if self._is_stopped else [self._outputs[item.id] for item in requests]


def _is_scored(task: ForcingTask, number: int) -> bool:
    return all([is_sealed(task.run, path) for path in shard_paths(task.stems, len(task.requests), number)])


def _silent(_num_tokens: int) -> None:
    """Progress is shown by whoever waits."""
