"""The vectorised judge reaches the verdicts of the checks themselves on the same comparisons."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from lossguard.checks.base import Check
from lossguard.checks.buckets import BucketsCheck
from lossguard.checks.burst import BurstCheck
from lossguard.checks.burst_finding import BurstInput, RequestCounts, find_bursts
from lossguard.checks.calibrate import margin_of_rate, near_tie_budget
from lossguard.checks.near_tie import NearTieCheck
from lossguard.checks.rate import RateCheck
from lossguard.plan import Budget
from lossguard.records import Verdict
from lossguard.selftest.cells import Cell
from lossguard.selftest.draw import Comparisons, draw
from lossguard.selftest.judge import judge, may_flag
from lossguard.selftest.statistics import StockStatistics
from tests.checks.simulated_arms import thresholds
from tests.selftest.conftest import DELTA
from tests.selftest.token_arms import as_check_input

BUDGET = Budget(name="small", num_requests=210, max_tokens=64, num_calibration=80)


def comparisons(statistics: StockStatistics, shape: str, number: int, seed: int = 5) -> Comparisons:
    cell = Cell(budget=BUDGET, rate=0.003, rho=0.002, shape=shape, num_comparisons=number, is_measured=False)
    return draw(cell, statistics, number, np.random.default_rng(seed))


def calibrated(given: Comparisons, run: int) -> tuple[float, float]:
    """(stock's rate, flip cost) of one comparison's calibration."""
    arms = (given.calibration, given.recomposed)
    rate = sum(arm.mismatches[run].sum() for arm in arms) / sum(arm.tokens[run].sum() for arm in arms)
    return float(rate), float(given.calibration.flip_costs[run].sum() / given.calibration.tokens[run].sum())


@pytest.mark.parametrize("shape", ["none", "spread", "bursty", "late"])
def test_verdicts_are_those_of_the_checks(statistics: StockStatistics, shape: str) -> None:
    number = 4
    given = comparisons(statistics, shape, number)
    judged = judge(given, statistics, 0.0 if shape == "none" else 0.005, seed=1)
    agreed: Counter[str] = Counter()
    for run in range(number):
        rate, flip_cost = calibrated(given, run)
        limits = thresholds(
            q_nats=DELTA,
            margin=float(margin_of_rate(rate)),
            near_tie_budget_nats=float(near_tie_budget(flip_cost, 0.0)),
            delta_max_nats=DELTA,
        )
        tokens = as_check_input(given, run, statistics, limits, seed=9)
        checks: tuple[Check, ...] = (RateCheck(), NearTieCheck(), BucketsCheck(), BurstCheck())
        for check in checks:
            name = check.name
            found = check.run(tokens).verdict
            is_known = name != "burst" or run < judged.num_burst
            ours = (bool(judged.passed[name][run]), bool(judged.failed[name][run]))
            agreed[name] += not is_known or ours == (found is Verdict.PASS, found is Verdict.FAIL)
    assert agreed == Counter(dict.fromkeys(("rate", "near-tie", "buckets", "burst"), number))


def test_the_quick_look_excludes_no_flag(statistics: StockStatistics) -> None:
    """Of comparisons that it excludes, none has a flag by the whole check."""
    given = comparisons(statistics, "none", 150)
    excluded = np.flatnonzero(~may_flag(given))
    assert len(excluded) > 100
    for run in excluded[:60].tolist():
        found = find_bursts(
            BurstInput(
                candidate=RequestCounts(mismatches=given.candidate.mismatches[run], tokens=given.candidate.tokens[run]),
                stock=RequestCounts(mismatches=given.stock.mismatches[run], tokens=given.stock.tokens[run]),
                calibration=RequestCounts(
                    mismatches=given.calibration.mismatches[run], tokens=given.calibration.tokens[run]
                ),
                cluster=np.arange(BUDGET.num_requests),
                seed=run,
                num_fits=50,
            )
        )
        assert not found.flagged.any()


def test_too_few_clusters_never_pass(statistics: StockStatistics) -> None:
    cell = Cell(
        budget=replace(BUDGET, num_requests=150),
        rate=0.003,
        rho=0.002,
        shape="none",
        num_comparisons=5,
        is_measured=False,
    )
    judged = judge(draw(cell, statistics, 5, np.random.default_rng(0)), statistics, 0.0, seed=1)
    assert judged.outcomes()["PASS"] == (0, 5)


def test_intervals_that_cannot_hold_the_truth_are_counted(statistics: StockStatistics) -> None:
    given = comparisons(statistics, "none", 20)
    outcomes = judge(given, statistics, 0.5, seed=1).outcomes()
    assert outcomes["covers: rate upper 95 %"] == (0, 20)
    assert outcomes["covers: rate lower 99 %"] == (20, 20)
