"""What is simulated: cells of budget, stock and excess, and what is promised for them."""

from __future__ import annotations

from dataclasses import dataclass

from lossguard.plan import BUDGETS, Budget
from lossguard.selftest.statistics import StockStatistics

EXCESS = 0.005
"""Of the +0.5 point cells, a fraction of tokens."""
SMALL_EXCESS = 0.001
"""A fifth of the margin, spread evenly: reported, because a margin says that this is no reason to fail."""
SHAPES = ("spread", "bursty", "late")
"""Evenly over tokens; in 5 % of the requests; in the second half of ``max_tokens`` only."""
GRID_RATES = (0.0005, 0.002, 0.0065)
GRID_RHOS = (0.001, 0.01)
FULL_SIZE = 20_000
PLAIN_SIZE = 400
GRID_SHARE = 0.2
"""A grid cell has this share of a main cell's comparisons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One kind of comparison: stock of this rate and rho, a candidate with this excess (``none``: lossless)."""

    budget: Budget
    rate: float
    rho: float
    shape: str
    num_comparisons: int
    is_measured: bool  # rate and rho are those of the recorded stock

    @property
    def excess(self) -> float:
        """The candidate's true excess, a fraction of tokens."""
        return {"none": 0.0, "small": SMALL_EXCESS}.get(self.shape, EXCESS)

    @property
    def name(self) -> str:
        """For seeds and reports."""
        return f"{self.budget.name} rate {100 * self.rate:.3g} % rho {self.rho:.2g} {self.shape}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """At most this share of comparisons may have this outcome (a name that ``judge`` counts)."""

    outcome: str
    shape: str  # "any excess" is checked shape by shape
    limit: float
    text: str


PROMISES = (
    Promise(outcome="FAIL", shape="none", limit=0.05, text="P(FAIL | lossless)"),
    Promise(outcome="not PASS", shape="none", limit=0.10, text="P(not PASS | lossless)"),
    *(Promise(outcome="PASS", shape=shape, limit=0.06, text=f"P(PASS | +0.5 points, {shape})") for shape in SHAPES),
)
"""Of the standard budget."""
PROMISED_BUDGET = "standard"


def cells_of(statistics: StockStatistics, size: int, *, with_grid: bool) -> tuple[Cell, ...]:
    """The measured stock at each budget, and a grid of stock rates and rhos at the promised one."""
    shapes = ("none", *SHAPES)
    main = [
        Cell(
            budget=budget,
            rate=statistics.rate,
            rho=statistics.rho,
            shape=shape,
            num_comparisons=size,
            is_measured=True,
        )
        for budget in BUDGETS.values()
        for shape in (*shapes, "small")
    ]
    grid = [
        Cell(
            budget=BUDGETS[PROMISED_BUDGET],
            rate=rate,
            rho=rho,
            shape=shape,
            num_comparisons=max(round(size * GRID_SHARE), 1),
            is_measured=False,
        )
        for rate in GRID_RATES
        for rho in sorted({*GRID_RHOS, statistics.rho})
        for shape in shapes
    ]
    return (*main, *grid) if with_grid else tuple(main)
