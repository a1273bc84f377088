"""Runs cells in chunks over processes. Each chunk has a seed of its own, so that no figure depends on their number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass

import numpy as np

from lossguard.checks.seeds import stream_seed
from lossguard.listener import Listener
from lossguard.selftest.cells import Cell
from lossguard.selftest.draw import draw
from lossguard.selftest.intervals import Share
from lossguard.selftest.judge import judge
from lossguard.selftest.processes import one_thread_pool
from lossguard.selftest.statistics import StockStatistics

CHUNK = 200
"""Comparisons judged together; they share one set of resamples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """Outcomes of one cell, counted."""

    cell: Cell
    outcomes: Mapping[str, Share]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Comparisons of one cell that one process draws and judges together."""

    cell: Cell
    statistics: StockStatistics
    number: int
    seed: int


def run_cells(
    cells: Sequence[Cell], statistics: StockStatistics, *, seed: int, num_workers: int, listener: Listener
) -> list[CellResult]:
    """Simulate and judge every cell, over ``num_workers`` processes of one thread each."""
    chunks = [(index, chunk) for index, cell in enumerate(cells) for chunk in _chunks(cell, statistics, seed)]
    totals: list[dict[str, Share]] = [{} for _ in cells]
    total = sum(cell.num_comparisons for cell in cells)
    with (
        listener.stage(f"simulating {len(cells)} cells", total, "comparisons") as progress,
        one_thread_pool(num_workers) as pool,
    ):
        waiting = {pool.submit(run_chunk, chunk): (index, chunk.number) for index, chunk in chunks}
        for done in as_completed(waiting):
            index, number = waiting[done]
            for outcome, (count, known) in done.result().items():
                before = totals[index].get(outcome, Share(count=0, number=0))
                totals[index][outcome] = Share(count=before.count + count, number=before.number + known)
            progress(number)
    return [CellResult(cell=cell, outcomes=found) for cell, found in zip(cells, totals, strict=True)]


def run_chunk(chunk: Chunk) -> dict[str, tuple[int, int]]:
    """Draw and judge one chunk."""
    generator = np.random.default_rng(chunk.seed)
    comparisons = draw(chunk.cell, chunk.statistics, chunk.number, generator)
    return judge(comparisons, chunk.statistics, chunk.cell.excess, chunk.seed).outcomes()


def _chunks(cell: Cell, statistics: StockStatistics, seed: int) -> Iterator[Chunk]:
    for start in range(0, cell.num_comparisons, CHUNK):
        yield Chunk(
            cell=cell,
            statistics=statistics,
            number=min(CHUNK, cell.num_comparisons - start),
            seed=stream_seed(seed, f"{cell.name} {start}"),
        )
