"""``lossguard selftest timing --simulate``: does the timing gate keep what it promises?

Simulates campaigns with the noise of real hosts and judges them with the very functions of the gate.

Covered: coverage of the bounds, false promotions, early looks, re-submissions, losses hidden behind a mean.
Not covered: whether a host's noise is of these kinds (the A/A profile and the live part say that), clocks, telemetry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from lossguard.listener import Listener
from lossguard.records import Verdict
from lossguard.selftest.base import DEFAULT_SEED, SelftestOptions, SelftestPart, Table
from lossguard.timing.simulation.cells import Cell, Count, add_up
from lossguard.timing.simulation.experiments import Chunk, Experiment, chunks, experiments

NAME = "timing-simulate"
FULL_CAMPAIGNS = 20_000
PLAIN_CAMPAIGNS = 400


def simulate_timing(
    *,
    num_campaigns: int,
    seed: int = DEFAULT_SEED,
    num_workers: int = 1,
    only: str = "",
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> SelftestPart:
    """Run all experiments (those whose name holds ``only``). Figures depend on seed and size, never on the workers."""
    chosen = tuple(experiment for experiment in experiments() if only in experiment.name)
    pieces = chunks(chosen, num_campaigns=num_campaigns, seed=seed)
    start = time.monotonic()
    with _mapped(pieces, num_workers) as results:
        counts = add_up(_counted(results, len(pieces), on_progress))
    return part_of(counts, chosen, seed=seed, num_campaigns=num_campaigns, seconds=time.monotonic() - start)


def run(options: SelftestOptions, listener: Listener) -> SelftestPart:
    """The part as the command line runs it; ``size`` is the number of campaigns a cell."""
    size = options.size or (FULL_CAMPAIGNS if options.is_full else PLAIN_CAMPAIGNS)
    number = len(chunks(experiments(), num_campaigns=size, seed=options.seed))
    with listener.stage("simulating timing campaigns", number, "chunks") as advance:
        return simulate_timing(
            num_campaigns=size,
            seed=options.seed,
            num_workers=options.num_workers,
            on_progress=lambda _done, _all: advance(1),
        )


@contextmanager
def _mapped(pieces: tuple[Chunk, ...], num_workers: int) -> Iterator[Iterator[dict[Cell, Count]]]:
    if num_workers <= 1:
        yield map(Chunk.run, pieces)
        return
    with ProcessPoolExecutor(max_workers=num_workers) as pool:
        yield pool.map(Chunk.run, pieces, chunksize=4)


def _counted(
    results: Iterator[dict[Cell, Count]], number: int, on_progress: Callable[[int, int], None]
) -> Iterator[dict[Cell, Count]]:
    for done, result in enumerate(results, start=1):
        on_progress(done, number)
        yield result


def part_of(
    counts: Mapping[Cell, Count],
    chosen: tuple[Experiment, ...],
    *,
    seed: int,
    num_campaigns: int,
    seconds: float,
) -> SelftestPart:
    """Tables, promises and the verdict."""
    promised = [(cell, value, value.meets(cell.limits)) for cell, value in counts.items() if cell.limits is not None]
    kept = sum(verdict is Verdict.PASS for _, _, verdict in promised)
    problems = tuple(
        f"{verdict.value}: {cell.table}, {cell.row}, {cell.column}: {figure(value)}, promised {cell.limits}"
        for cell, value, verdict in promised
        if verdict is not Verdict.PASS
    )
    return SelftestPart(
        name=NAME,
        verdict=Verdict.combine([verdict for _, _, verdict in promised]),
        summary=f"{kept} of {len(promised)} promises kept; {num_campaigns:,} campaigns a cell, seed {seed}",
        tables=tuple(_tables(counts)),
        evidence={
            "seed": seed,
            "num_campaigns": num_campaigns,
            "num_experiments": len(chosen),
            "seconds": seconds,
            "cells": [_cell_json(cell, value) for cell, value in counts.items()],
        },
        problems=problems,
        notes=(
            "share (99 % Monte Carlo interval); behind |: mean distance of the bound below the truth, or pairs used",
            "a coverage over 99.5 % by no more than chance is kept: that bar says that bounds are not wastefully wide",
            "* promised and kept, ! promised and broken, ? outside by no more than chance; no sign: reported only",
        ),
    )


def figure(value: Count) -> str:
    """A share with its interval, in per cent."""
    low, high = value.interval
    return f"{100 * value.share:.2f} % ({100 * low:.2f}-{100 * high:.2f})"


def _text(cell: Cell, value: Count) -> str:
    sign = ""
    if cell.limits is not None:
        sign = {Verdict.PASS: "*", Verdict.FAIL: "!", Verdict.INCONCLUSIVE: "?"}[value.meets(cell.limits)]
    size = {"coverage": f" | {100 * value.mean:.2f} %", "sequential": f" | {value.mean:.1f}"}.get(cell.table, "")
    return figure(value) + sign + size


def _tables(counts: Mapping[Cell, Count]) -> Iterator[Table]:
    for title in dict.fromkeys(cell.table for cell in counts):
        here = {cell: value for cell, value in counts.items() if cell.table == title}
        columns = tuple(dict.fromkeys(cell.column for cell in here))
        texts = {(cell.row, cell.column): _text(cell, value) for cell, value in here.items()}
        rows = dict.fromkeys(cell.row for cell in here)
        yield Table(
            title=title,
            columns=("", *columns),
            rows=tuple((row, *(texts.get((row, column), "") for column in columns)) for row in rows),
        )


def _cell_json(cell: Cell, value: Count) -> dict[str, Any]:
    low, high = value.interval
    return {
        "table": cell.table,
        "row": cell.row,
        "column": cell.column,
        "hits": value.hits,
        "number": value.number,
        "share": value.share,
        "low_99": low,
        "high_99": high,
        "mean_size": value.mean,
        "limits": None if cell.limits is None else [cell.limits.low, cell.limits.high],
        "verdict": None if cell.limits is None else value.meets(cell.limits).value,
    }
