"""``lossguard selftest timing --simulate``: does the timing gate keep what it promises?

Simulates campaigns with the noise of real hosts and judges them with the very functions of the gate.

Covered: coverage of the bounds, false promotions, early looks, re-submissions, losses hidden behind a mean.
Not covered: whether a host's noise is of these kinds (the A/A profile and the live part say that), clocks, telemetry.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lossguard.listener import Listener
from lossguard.records import Verdict
from lossguard.timing.simulation.cells import Cell, Count, add_up
from lossguard.timing.simulation.experiments import Chunk, Experiment, chunks, experiments

NAME = "timing-simulate"
DEFAULT_SEED = 17
FULL_CAMPAIGNS = 20_000
PLAIN_CAMPAIGNS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationTable:
    """Rows for people."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationPart:
    """The outcome: FAIL if a promise is broken, INCONCLUSIVE if a share lies outside its bar by no more than chance."""

    name: str
    verdict: Verdict
    summary: str
    tables: tuple[SimulationTable, ...]
    evidence: Mapping[str, Any]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def simulate_timing(
    *,
    num_campaigns: int,
    seed: int = DEFAULT_SEED,
    num_workers: int = 1,
    only: str = "",
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> SimulationPart:
    """Run all experiments (those whose name holds ``only``). Figures depend on seed and size, never on the workers."""
    chosen = tuple(experiment for experiment in experiments() if only in experiment.name)
    pieces = chunks(chosen, num_campaigns=num_campaigns, seed=seed)
    start = time.monotonic()
    with _mapped(pieces, num_workers) as results:
        counts = add_up(_counted(results, len(pieces), on_progress))
    return part_of(counts, chosen, seed=seed, num_campaigns=num_campaigns, seconds=time.monotonic() - start)


class Options(Protocol):
    """What the command line asks for."""

    @property
    def seed(self) -> int:
        """Everything is drawn from it."""

    @property
    def is_full(self) -> bool:
        """20,000 campaigns a cell."""

    @property
    def num_workers(self) -> int:
        """Processes."""

    @property
    def size(self) -> int | None:
        """Campaigns a cell; None: the default."""


def run(options: Options, listener: Listener) -> SimulationPart:
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
) -> SimulationPart:
    """Tables, promises and the verdict."""
    promised = [(cell, value, value.meets(cell.limits)) for cell, value in counts.items() if cell.limits is not None]
    kept = sum(verdict is Verdict.PASS for _, _, verdict in promised)
    problems = tuple(
        f"{verdict.value}: {cell.table}, {cell.row}, {cell.column}: {figure(value)}, promised {cell.limits}"
        for cell, value, verdict in promised
        if verdict is not Verdict.PASS
    )
    return SimulationPart(
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


def _tables(counts: Mapping[Cell, Count]) -> Iterator[SimulationTable]:
    for title in dict.fromkeys(cell.table for cell in counts):
        here = {cell: value for cell, value in counts.items() if cell.table == title}
        columns = tuple(dict.fromkeys(cell.column for cell in here))
        texts = {(cell.row, cell.column): _text(cell, value) for cell, value in here.items()}
        rows = dict.fromkeys(cell.row for cell in here)
        yield SimulationTable(
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


def render(part: SimulationPart) -> str:
    """The part as Markdown."""
    lines = [f"{part.verdict.value}  {part.name}: {part.summary}", *part.problems]
    for table in part.tables:
        rows = [table.columns, ("---",) * len(table.columns), *table.rows]
        lines += ["", f"### {table.title}", "", *(f"| {' | '.join(_escaped(row))} |" for row in rows)]
    return "\n".join([*lines, "", *part.notes])


def _escaped(row: tuple[str, ...]) -> list[str]:
    return [cell.replace("|", "/") for cell in row]


def main() -> int:
    """Run and print; exit code 0 for PASS, 1 for FAIL, 10 for INCONCLUSIVE."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help=f"{FULL_CAMPAIGNS:,} campaigns a cell")
    parser.add_argument("--campaigns", type=int, help="campaigns a cell")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", default="", help="experiments whose name holds this")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    part = simulate_timing(
        num_campaigns=options.campaigns or (FULL_CAMPAIGNS if options.full else PLAIN_CAMPAIGNS),
        seed=options.seed,
        num_workers=options.workers,
        only=options.only,
        on_progress=_show_progress,
    )
    sys.stderr.write("\n")
    sys.stdout.write(render(part) + "\n")
    if options.json:
        options.json.write_text(json.dumps(part.evidence, indent=1) + "\n", encoding="utf-8")
    return {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 10}[part.verdict]


def _show_progress(done: int, number: int) -> None:
    if done % 50 == 0 or done == number:
        sys.stderr.write(f"\r{done} of {number} chunks")


if __name__ == "__main__":
    sys.exit(main())
