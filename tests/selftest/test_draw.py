"""Drawn comparisons have the rates, the rho and the excess that their cell says."""

from __future__ import annotations

import numpy as np
import pytest

from lossguard.checks.describe import intraclass_correlation
from lossguard.plan import Budget
from lossguard.selftest.cells import EXCESS, Cell
from lossguard.selftest.draw import Comparisons, draw, tokens_at
from lossguard.selftest.statistics import StockStatistics

BUDGET = Budget(name="small", num_requests=60, max_tokens=64, num_calibration=20)
NUM_COMPARISONS = 400


def cell(shape: str, rate: float = 0.003, rho: float = 0.01) -> Cell:
    return Cell(budget=BUDGET, rate=rate, rho=rho, shape=shape, num_comparisons=NUM_COMPARISONS, is_measured=False)


def drawn(statistics: StockStatistics, shape: str, seed: int = 3) -> Comparisons:
    return draw(cell(shape), statistics, NUM_COMPARISONS, np.random.default_rng(seed))


@pytest.mark.parametrize("shape", ["spread", "bursty", "late"])
def test_the_excess_is_half_a_point(statistics: StockStatistics, shape: str) -> None:
    found = drawn(statistics, shape)
    rates = [arm.mismatches.sum() / arm.tokens.sum() for arm in (found.candidate, found.stock)]
    assert rates[0] - rates[1] == pytest.approx(EXCESS, rel=0.06)
    assert rates[1] == pytest.approx(0.003, rel=0.08)


def test_rho_is_that_of_the_cell(statistics: StockStatistics) -> None:
    found = drawn(statistics, "none")
    rho = intraclass_correlation(found.stock.mismatches.reshape(-1), found.stock.tokens.reshape(-1))
    assert rho == pytest.approx(0.01, abs=0.003)


def test_both_arms_share_the_prompts_rates(statistics: StockStatistics) -> None:
    found = drawn(statistics, "none")
    shares = [(arm.mismatches / arm.tokens).reshape(-1) for arm in (found.candidate, found.stock)]
    assert np.corrcoef(shares[0], shares[1])[0, 1] > 0.1


def test_a_burst_sits_in_one_request_in_twenty(statistics: StockStatistics) -> None:
    hit = drawn(statistics, "bursty").candidate.mismatches >= 3
    assert 0.03 < hit.mean() < 0.06


def test_late_mismatches_are_late(statistics: StockStatistics) -> None:
    late, plain = drawn(statistics, "late").candidate, drawn(statistics, "none").candidate
    early = [arm.mismatches_at[..., :2].sum() / arm.mismatches.sum() for arm in (late, plain)]
    assert early[0] < 0.5 * early[1]


def test_columns_add_up(statistics: StockStatistics) -> None:
    arm = drawn(statistics, "spread").candidate
    assert np.array_equal(arm.mismatches_at.sum(axis=-1), arm.mismatches)
    assert np.array_equal(tokens_at(arm.tokens).sum(axis=-1), arm.tokens)
    assert (arm.mismatches_at <= tokens_at(arm.tokens) + 1).all()
    assert (arm.finish_mismatches <= arm.mismatches).all()
    assert (arm.lower <= arm.ties).all()
    assert np.array_equal(arm.hits, arm.mismatches + arm.lower.sum(axis=-1))
    assert arm.lower.sum() / arm.ties.sum() == pytest.approx(0.3, abs=0.02)
    assert arm.ties.sum() / arm.tokens.sum() == pytest.approx(0.05, rel=0.05)


def test_equal_seeds_draw_equally(statistics: StockStatistics) -> None:
    first, second = drawn(statistics, "bursty", seed=8), drawn(statistics, "bursty", seed=8)
    assert np.array_equal(first.candidate.gaps, second.candidate.gaps)
    assert not np.array_equal(first.candidate.gaps, drawn(statistics, "bursty", seed=9).candidate.gaps)
