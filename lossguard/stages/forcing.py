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
    piece_requests: int = SHARD_REQUESTS  # scored in one call: another number makes other batches
    before_shard: Callable[[int], None] = lambda _number: None  # called before a shard is looked for


def force(scorer: Callable[[], Scorer], task: ForcingTask, progress: Callable[[int], None]) -> list[ForcedScores]:
    """Scores per arm, read from shards where they fit the outputs, made and written otherwise."""
    shards: list[list[ForcedScores]] = [[] for _ in task.arms]
    for number, window in enumerate(windows(len(task.requests))):
        task.before_shard(number)
        requests, arms = task.requests[window], [arm[window] for arm in task.arms]
        paths = shard_paths(task.stems, len(task.requests), number)
        scores = saved_scores(task.run, paths, arms)
        if scores is None:
            pieces = [
                score_piece(scorer(), requests[part], [arm[part] for arm in arms], progress)
                for part in pieces_of(len(requests), task.piece_requests)
            ]
            scores = save_shard(task.run, paths, pieces)
        else:
            progress(sum(column.num_tokens for column in scores))
        for arm_shards, column in zip(shards, scores, strict=True):
            arm_shards.append(column)
    return [concat_scores(arm_shards) for arm_shards in shards]


def windows(num_requests: int) -> list[slice]:
    """The requests of each shard."""
    return pieces_of(num_requests, SHARD_REQUESTS)


def pieces_of(num_requests: int, size: int) -> list[slice]:
    """Consecutive parts of at most ``size`` requests."""
    return [slice(first, min(first + size, num_requests)) for first in range(0, num_requests, size)]


def shard_paths(stems: Sequence[Path], num_requests: int, number: int) -> list[Path]:
    """The file of one shard for each arm."""
    return [shards_of(stem, num_requests)[number] for stem in stems]


def save_shard(run: Path, paths: Sequence[Path], pieces: Sequence[Sequence[ForcedScores]]) -> list[ForcedScores]:
    """Write the pieces of a shard, arm by arm, and seal the files."""
    scores = [concat_scores([piece[arm] for piece in pieces]) for arm in range(len(paths))]
    for path, column in zip(paths, scores, strict=True):
        save_scores(path, column)
    seal(run, paths)
    return scores


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


def score_piece(
    scorer: Scorer,
    requests: Sequence[Request],
    arms: Sequence[Sequence[ServedOutput]],
    progress: Callable[[int], None],
) -> list[ForcedScores]:
    """Scores per arm of some requests, in one call of the scorer."""
    jobs = [
        ScoringJob(request=request, outputs=tuple(scorable(arm[index]) for arm in arms))
        for index, request in enumerate(requests)
    ]
    return scorer.score(jobs, progress=progress)


def saved_scores(run: Path, paths: Sequence[Path], arms: Sequence[Sequence[ServedOutput]]) -> list[ForcedScores] | None:
    """Scores per arm of one shard, if they are whole and of these replies."""
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
