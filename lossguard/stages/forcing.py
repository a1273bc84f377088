"""Forcing: scores of served tokens, in shards that survive a crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lossguard.records import ForcedScores, Request, ServedOutput
from lossguard.scoring.base import Scorer, ScoringJob
from lossguard.scoring.columns import concat_scores, load_scores, save_scores, select
from lossguard.seals import is_sealed, seal
from lossguard.stages.validation import scorable

SHARD_REQUESTS = 120  # scored between two writes; also how far length bucketing can look


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcingTask:
    """Arms to be scored along one prefix tree, and the file stem of each arm's shards."""

    run: Path  # the run folder, where finished shards are sealed
    requests: Sequence[Request]
    arms: Sequence[Sequence[ServedOutput]]  # [arm][request]
    stems: Sequence[Path]  # [arm], such as .../dflash/scores


def force(scorer: Callable[[], Scorer], task: ForcingTask, progress: Callable[[int], None]) -> list[ForcedScores]:
    """Scores per arm, read from shards where they fit the outputs, made and written otherwise."""
    shards: list[list[ForcedScores]] = [[] for _ in task.arms]
    for number, first in enumerate(range(0, len(task.requests), SHARD_REQUESTS)):
        window = slice(first, first + SHARD_REQUESTS)
        requests, arms = task.requests[window], [arm[window] for arm in task.arms]
        paths = [shards_of(stem, len(task.requests))[number] for stem in task.stems]
        scores = _saved(task.run, paths, arms)
        if scores is None:
            scores = _score(scorer(), requests, arms, progress)
            for path, column in zip(paths, scores, strict=True):
                save_scores(path, column)
            seal(task.run, paths)
        else:
            progress(sum(column.num_tokens for column in scores))
        for arm_shards, column in zip(shards, scores, strict=True):
            arm_shards.append(column)
    return [concat_scores(arm_shards) for arm_shards in shards]


def shards_of(stem: Path, num_requests: int) -> list[Path]:
    """The files of one arm's shards."""
    count = -(-num_requests // SHARD_REQUESTS)
    return [stem.with_name(f"{stem.name}-{number:04d}.safetensors") for number in range(count)]


def save_forced(task: ForcingTask, scores: Sequence[ForcedScores]) -> None:
    """Write scores that are already there as ``force`` would have, so that it finds them."""
    for stem, column in zip(task.stems, scores, strict=True):
        paths = shards_of(stem, len(task.requests))
        for number, path in enumerate(paths):
            window = slice(number * SHARD_REQUESTS, (number + 1) * SHARD_REQUESTS)
            save_scores(path, select(column, [request.id for request in task.requests[window]]))
        seal(task.run, paths)


def _score(
    scorer: Scorer,
    requests: Sequence[Request],
    arms: Sequence[Sequence[ServedOutput]],
    progress: Callable[[int], None],
) -> list[ForcedScores]:
    jobs = [
        ScoringJob(request=request, outputs=tuple(scorable(arm[index]) for arm in arms))
        for index, request in enumerate(requests)
    ]
    return scorer.score(jobs, progress=progress)


def _saved(run: Path, paths: Sequence[Path], arms: Sequence[Sequence[ServedOutput]]) -> list[ForcedScores] | None:
    if not all([is_sealed(run, path) for path in paths]):
        return None
    scores = [load_scores(path) for path in paths]
    fits = all(_belongs(column, arm) for column, arm in zip(scores, arms, strict=True))
    return scores if fits else None


def _belongs(scores: ForcedScores, outputs: Sequence[ServedOutput]) -> bool:
    """Whether these are scores of exactly these replies."""
    if scores.request_ids != tuple(output.request_id for output in outputs):
        return False
    replies = [scorable(output).ids for output in outputs]
    if not np.array_equal(np.diff(scores.offsets), [len(ids) for ids in replies]):
        return False
    served = np.fromiter((token for ids in replies for token in ids), dtype=np.int64)
    return bool(np.array_equal(served, scores.served_id))
