"""``lossguard selftest losslessness --simulate``: false alarms, misses and coverage of the losslessness gate.

Covered: rate, event, near-tie, burst and buckets with their calibration, on comparisons drawn from a measured stock.
Not covered: structure, vacuity and scores, which a lossless reply passes by construction; faults other than more
mismatches (the live part and docs/validity.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lossguard.listener import Listener
from lossguard.plan import BUDGETS
from lossguard.records import Verdict
from lossguard.selftest.base import SelftestOptions, SelftestPart, Table
from lossguard.selftest.cells import FULL_SIZE, PLAIN_SIZE, PROMISED_BUDGET, PROMISES, SHAPES, cells_of
from lossguard.selftest.event_row import LIMIT, EventRow, event_rows
from lossguard.selftest.intervals import Share
from lossguard.selftest.simulation import CellResult, run_cells
from lossguard.selftest.statistics import StockStatistics, load_statistics, reply_lengths

NAME = "losslessness-simulate"
_CHECKS = ("rate", "near-tie", "burst", "buckets")
_TITLES = {"none": "lossless", "small": "+0.1 pt, spread", **{shape: f"+0.5 pt, {shape}" for shape in SHAPES}}


def run(options: SelftestOptions, listener: Listener) -> SelftestPart:
    """Simulate and hold the shares against what is promised for the standard budget."""
    statistics = load_statistics()
    size = options.size or (FULL_SIZE if options.is_full else PLAIN_SIZE)
    cells = cells_of(statistics, size, with_grid=options.is_full)
    results = run_cells(cells, statistics, seed=options.seed, num_workers=options.num_workers, listener=listener)
    events = event_rows_of(results, statistics)
    return part_of(results, events, statistics, options)


def event_rows_of(results: Sequence[CellResult], statistics: StockStatistics) -> dict[str, tuple[EventRow, ...]]:
    """The event row by budget."""
    budgets = {result.cell.budget.name: result.cell.budget for result in results}
    means = {name: float(reply_lengths(statistics, budget.max_tokens).mean()) for name, budget in budgets.items()}
    return {name: event_rows(statistics, budget.num_requests, means[name]) for name, budget in budgets.items()}


def part_of(
    results: Sequence[CellResult],
    events: dict[str, tuple[EventRow, ...]],
    statistics: StockStatistics,
    options: SelftestOptions,
) -> SelftestPart:
    """Tables, numbers and the verdict: FAIL if a promise is broken, INCONCLUSIVE if too few comparisons tell."""
    kept = [_kept(result, text, outcome, limit) for result, text, outcome, limit in _promised(results)]
    alarm = events[PROMISED_BUDGET][1]
    event_verdict = Verdict.PASS if alarm.not_pass <= LIMIT else Verdict.FAIL
    problems = tuple(text for verdict, text in kept if verdict is not Verdict.PASS)
    if event_verdict is Verdict.FAIL:
        problems += (f"the event row alone is red in {100 * alarm.not_pass:.2f} % of lossless runs",)
    verdict = Verdict.combine([*(verdict for verdict, _ in kept), event_verdict])
    number = sum(result.cell.num_comparisons for result in results)
    return SelftestPart(
        name=NAME,
        verdict=verdict,
        summary=f"{number:,} simulated comparisons, seed {options.seed}; stock of {statistics.name}",
        tables=(_main_table(results), _coverage_table(results), _event_table(events)),
        evidence={
            "seed": options.seed,
            "statistics": statistics.head(),
            "cells": [_cell_json(result) for result in results],
            "events": {name: [row.to_json() for row in rows] for name, rows in events.items()},
            "promises": [{"text": text, "verdict": verdict.value} for verdict, text in kept],
        },
        problems=problems,
        notes=(
            *_length_notes(statistics),
            "arms draw their tokens on their own, given a prompt's own rates: real arms share a prefix and differ less",
            "structure, vacuity and scores pass by construction; the event row is computed exactly, on its own",
        ),
    )


def _length_notes(statistics: StockStatistics) -> tuple[str, ...]:
    longest = max(budget.max_tokens for budget in BUDGETS.values())
    if statistics.longest_reply >= longest:
        return ()
    return (
        f"replies were measured up to {statistics.longest_reply} tokens; longer ones end at their set's rate so far",
    )


def _promised(results: Sequence[CellResult]) -> list[tuple[CellResult, str, str, float]]:
    return [
        (result, promise.text, promise.outcome, promise.limit)
        for result in results
        if result.cell.budget.name == PROMISED_BUDGET
        for promise in PROMISES
        if promise.shape == result.cell.shape
    ]


def _kept(result: CellResult, text: str, outcome: str, limit: float) -> tuple[Verdict, str]:
    share = result.outcomes[outcome]
    verdict = share.at_most(limit)
    stock = f"stock rate {100 * result.cell.rate:.3g} %, rho {result.cell.rho:.2g}"
    return verdict, f"{text} = {share}, at most {100 * limit:.0f} % promised, {stock}: {verdict.value}"


def _main_table(results: Sequence[CellResult]) -> Table:
    """One row per cell."""
    columns = ("budget", "stock rate", "rho", "candidate", "number", "FAIL", "PASS", "not PASS", "rate PASS")
    checks = tuple(f"{name} FAIL" for name in _CHECKS)
    rows = tuple(_main_row(result, checks) for result in results)
    return Table(title="verdicts of the gate and its checks (95 % interval)", columns=(*columns, *checks), rows=rows)


def _main_row(result: CellResult, checks: Sequence[str]) -> tuple[str, ...]:
    cell, found = result.cell, result.outcomes
    head = (
        cell.budget.name,
        f"{100 * cell.rate:.3g} %",
        f"{cell.rho:.2g}",
        _TITLES[cell.shape],
        f"{cell.num_comparisons:,}",
    )
    shares = (str(found[name]) for name in ("FAIL", "PASS", "not PASS", "rate PASS"))
    return (*head, *shares, *(f"{100 * found[name].value:.2f} %" for name in checks))


def _coverage_table(results: Sequence[CellResult]) -> Table:
    """One row per printed interval; one column per budget and excess of the measured stock."""
    measured = [result for result in results if result.cell.is_measured and result.cell.shape != "small"]
    names = sorted({name for result in measured for name in result.outcomes if name.startswith("covers: ")})
    columns = ("interval", *(f"{result.cell.budget.name}, {_TITLES[result.cell.shape]}" for result in measured))
    rows = tuple(
        (name.removeprefix("covers: "), *(_percent(result.outcomes[name]) for result in measured)) for name in names
    )
    return Table(title="how often each printed interval holds the truth", columns=columns, rows=rows)


def _percent(share: Share) -> str:
    return f"{100 * share.value:.2f} %"


def _event_table(events: dict[str, tuple[EventRow, ...]]) -> Table:
    columns = ("budget", "unexplained events by", "per million tokens", "requests with one", "not PASS", "FAIL")
    rows = tuple(
        (
            budget,
            row.source,
            f"{row.events_per_million_tokens:.3g}",
            f"{row.num_requests_with_event:.2g}",
            f"{100 * row.not_pass:.3g} %",
            f"{100 * row.fail:.2g} %",
        )
        for budget, found in events.items()
        for row in found
    )
    return Table(title="the event row on a lossless candidate", columns=columns, rows=rows)


def _cell_json(result: CellResult) -> dict[str, Any]:
    cell = result.cell
    return {
        "budget": cell.budget.name,
        "num_requests": cell.budget.num_requests,
        "max_tokens": cell.budget.max_tokens,
        "stock_rate": cell.rate,
        "rho": cell.rho,
        "candidate": cell.shape,
        "excess": cell.excess,
        "is_measured": cell.is_measured,
        "outcomes": {name: share.to_json() for name, share in sorted(result.outcomes.items())},
    }
