"""The columns being filled while batches finish in any order: one row per served token of every arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lossguard.errors import ScorerError
from lossguard.records import ForcedScores
from lossguard.scoring.base import ScoringJob
from lossguard.scoring.columns import COLUMN_DTYPES, NOT_FINITE, REPLAYED_DTYPES, SAMPLED_DTYPES, offsets_of


class ScoreSheet:
    """Columns over all slots; a slot is one served token of one arm. Untouched slots stay not finite."""

    def __init__(self, jobs: Sequence[ScoringJob], top_k: int, *, sampled: bool, replayed: bool = False) -> None:
        self._request_ids = tuple(job.request.id for job in jobs)
        num_arms = _num_arms(jobs)
        arms = [[job.outputs[arm].ids for job in jobs] for arm in range(num_arms)]
        self._offsets = [offsets_of(np.array([len(ids) for ids in arm], dtype=np.int64)) for arm in arms]
        sizes = np.array([offsets[-1] for offsets in self._offsets], dtype=np.int64)
        self._first_slots = offsets_of(sizes)
        self.num_slots = int(self._first_slots[-1])
        dtypes = COLUMN_DTYPES | (SAMPLED_DTYPES if sampled else {}) | (REPLAYED_DTYPES if replayed else {})
        self._columns = {name: self._blank(name, dtype, top_k) for name, dtype in dtypes.items()}
        served = np.fromiter((token for arm in arms for ids in arm for token in ids), dtype=np.int64)
        self._columns["served_id"][:] = _as_int32(served)

    def _blank(self, name: str, dtype: str, top_k: int) -> NDArray[Any]:
        shape = (self.num_slots, top_k) if name.startswith("top_") else (self.num_slots,)
        return np.full(shape, NOT_FINITE.get(name, 0), dtype=dtype)

    def first_slot(self, job_index: int, arm: int) -> int:
        """Where the first token of that reply goes."""
        return int(self._first_slots[arm] + self._offsets[arm][job_index])

    def fill(self, slots: NDArray[np.int64], rows: NDArray[np.int64], values: Mapping[str, NDArray[Any]]) -> None:
        """Write row ``rows[i]`` of the values to slot ``slots[i]``."""
        for name, column in values.items():
            if name in self._columns:
                self._columns[name][slots] = column[rows]

    def scores(self) -> list[ForcedScores]:
        """One ForcedScores per arm."""
        result = []
        for arm, offsets in enumerate(self._offsets):
            span = slice(int(self._first_slots[arm]), int(self._first_slots[arm + 1]))
            columns = {name: column[span].copy() for name, column in self._columns.items()}
            result.append(ForcedScores(request_ids=self._request_ids, offsets=offsets, **columns))
        return result


def _num_arms(jobs: Sequence[ScoringJob]) -> int:
    numbers = {len(job.outputs) for job in jobs}
    if len(numbers) != 1 or len({job.request.id for job in jobs}) != len(jobs):
        raise ScorerError(
            f"{len(jobs)} jobs with {sorted(numbers)} arms and {len({job.request.id for job in jobs})} request ids",
            why="columns of arms are aligned by request",
            fix="give at least one job, as many outputs to each, and every request its own id",
            code="LG0506",
        )
    return numbers.pop()


def _as_int32(served: NDArray[np.int64]) -> NDArray[np.int32]:
    limits = np.iinfo(np.int32)
    if len(served) and (served.min() < limits.min or served.max() > limits.max):
        raise ScorerError(
            f"a served id ({served.min()} or {served.max()}) does not fit 32 bits",
            why="it is no token id, so the output was not read as token ids",
            fix="check how the engine adapter reads token ids",
            code="LG0508",
        )
    return served.astype(np.int32)
