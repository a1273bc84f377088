"""The simulation whole: its part, its figures at a small size, and that processes change none of them."""

from __future__ import annotations

import json

import pytest

from lossguard.listener import SilentListener
from lossguard.records import Verdict
from lossguard.selftest.base import SelftestOptions, render
from lossguard.selftest.cells import PROMISES, SHAPES, cells_of
from lossguard.selftest.event_row import event_rows
from lossguard.selftest.intervals import Share
from lossguard.selftest.losslessness import part_of, run
from lossguard.selftest.simulation import CellResult, Chunk, run_cells, run_chunk
from lossguard.selftest.statistics import StockStatistics, load_statistics

OPTIONS = SelftestOptions(seed=3)


def made_up(statistics: StockStatistics, shares: dict[str, float], number: int = 20_000) -> list[CellResult]:
    """Results of the main cells with these shares by promise text; intervals and checks at 5 %."""
    names = [f"{check} {verdict}" for check in ("rate", "near-tie", "burst", "buckets") for verdict in ("PASS", "FAIL")]
    found = []
    for cell in cells_of(statistics, number, with_grid=False):
        outcomes = {name: Share(count=number // 20, number=number) for name in (*names, "covers: rate upper 95 %")}
        for outcome in ("PASS", "FAIL", "not PASS"):
            share = shares.get(f"{cell.shape} {outcome}", 0.001)
            outcomes[outcome] = Share(count=round(share * number), number=number)
        found.append(CellResult(cell=cell, outcomes=outcomes))
    return found


def part_with(statistics: StockStatistics, shares: dict[str, float], number: int = 20_000) -> tuple[Verdict, int]:
    results = made_up(statistics, shares, number)
    events = {"standard": event_rows(statistics, 240, 60.0)}
    part = part_of(results, events, statistics, OPTIONS)
    return part.verdict, len(part.problems)


def test_kept_promises_pass(statistics: StockStatistics) -> None:
    assert part_with(statistics, {}) == (Verdict.PASS, 0)


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ({"none FAIL": 0.06}, Verdict.FAIL),
        ({"none not PASS": 0.12}, Verdict.FAIL),
        *[({f"{shape} PASS": 0.07}, Verdict.FAIL) for shape in SHAPES],
        ({"spread PASS": 0.06}, Verdict.INCONCLUSIVE),
        ({"small FAIL": 0.9}, Verdict.PASS),
    ],
)
def test_a_broken_promise_fails(statistics: StockStatistics, shares: dict[str, float], verdict: Verdict) -> None:
    assert part_with(statistics, shares)[0] is verdict


def test_few_comparisons_prove_nothing(statistics: StockStatistics) -> None:
    assert part_with(statistics, {}, number=20) == (Verdict.INCONCLUSIVE, len(PROMISES))


def test_each_chunk_is_its_seeds(statistics: StockStatistics) -> None:
    cell = cells_of(statistics, 20, with_grid=False)[0]
    first, second = (run_chunk(Chunk(cell=cell, statistics=statistics, number=20, seed=seed)) for seed in (1, 1))
    assert first == second


def test_the_grid_covers_the_standard_budget(statistics: StockStatistics) -> None:
    grid = [cell for cell in cells_of(statistics, 1000, with_grid=True) if not cell.is_measured]
    assert {cell.budget.name for cell in grid} == {"standard"}
    assert {cell.rate for cell in grid} == {0.0005, 0.002, 0.0065}
    assert {cell.num_comparisons for cell in grid} == {200}
    assert len({cell.name for cell in grid}) == len(grid), "equal names would share their seeds"


@pytest.mark.slow
def test_processes_change_no_figure() -> None:
    statistics = load_statistics()
    cells = cells_of(statistics, 220, with_grid=False)[:2]  # two chunks a cell
    found = [run_cells(cells, statistics, seed=3, num_workers=number, listener=SilentListener()) for number in (1, 2)]
    assert [result.outcomes for result in found[0]] == [result.outcomes for result in found[1]]


@pytest.mark.slow
def test_the_promises_hold_at_a_small_size() -> None:
    """No promise may be broken beyond what the interval of 300 comparisons leaves open."""
    part = run(SelftestOptions(seed=23, size=300, num_workers=2), SilentListener())
    assert part.verdict is not Verdict.FAIL, render(part)
    json.dumps(part.to_json())
    cells = {(cell["budget"], cell["candidate"]): cell["outcomes"] for cell in part.evidence["cells"]}
    for budget in ("quick", "standard", "full"):
        assert cells[budget, "none"]["FAIL"]["low_95"] <= 0.05
        assert cells[budget, "none"]["not PASS"]["low_95"] <= 0.10
        for shape in SHAPES:
            assert cells[budget, shape]["PASS"]["low_95"] <= 0.06
        for name, outcome in cells[budget, "none"].items():
            if name.startswith("covers: "):
                assert outcome["high_95"] >= (0.99 if "99" in name else 0.95), (budget, name, outcome)
