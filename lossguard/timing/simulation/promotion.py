"""Who gets promoted? Table 3 and the attacks on it, through the whole rule with its guards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lossguard.timing.batch import judge_batch
from lossguard.timing.crossover import log_ratios
from lossguard.timing.rules import Claim
from lossguard.timing.simulation.cells import Cell, Count, Limits, count
from lossguard.timing.simulation.coverage import balanced_strata
from lossguard.timing.simulation.model import COMPENSATION, Scenario, simulate

NO_PROMOTION = Limits(high=0.005)
NOMINAL = Limits(high=0.05)
PAIRS = (4, 8)


def promotion(rng: np.random.Generator, number: int, scenario: Scenario) -> dict[Cell, Count]:
    """P(PASS) of ``faster`` for the scenario's true gain; at most 0.5 % where that is at most 1 %."""
    campaigns = simulate(rng, number, max(PAIRS), scenario)
    differences = log_ratios(campaigns.seconds)
    profile = log_ratios(campaigns.profile_seconds).mean(axis=-1)
    strata = balanced_strata(scenario.num_requests)
    limits = NO_PROMOTION if scenario.gain <= np.log1p(0.01) + 1e-12 else None
    column = f"true gain {100 * np.expm1(scenario.gain):.3g} %"
    result = {}
    for pairs in PAIRS:
        found = judge_batch(differences[:, :pairs], profile, strata, Claim())
        row = f"{scenario.name}, M = {pairs}"
        result[Cell(table="promotion", row=row, column=column, limits=limits)] = count(found.passes, found.threshold)
        failed = Cell(table="FAIL (below the threshold it is right)", row=row, column=column)
        result[failed] = count(found.fails)
    return result


def non_inferiority(rng: np.random.Generator, number: int, scenario: Scenario) -> dict[Cell, Count]:
    """P(PASS) of ``not_slower(1 %)``: at most 5 % for a true loss of 1 %, reported for an equal candidate."""
    strata = balanced_strata(scenario.num_requests)
    result = {}
    for loss in (0.01, 0.0):
        campaigns = simulate(rng, number, max(PAIRS), replace(scenario, gain=np.log1p(-loss)))
        differences = log_ratios(campaigns.seconds)
        profile = log_ratios(campaigns.profile_seconds).mean(axis=-1)
        for pairs in PAIRS:
            found = judge_batch(differences[:, :pairs], profile, strata, Claim(rule="not-slower", amount=0.01))
            row, column = f"{scenario.name}, M = {pairs}", f"true loss {100 * loss:.3g} %"
            limits = NOMINAL if loss else None
            result[Cell(table="not_slower (margin 1 %)", row=row, column=column, limits=limits)] = count(found.passes)
    return result


def tail_attack(rng: np.random.Generator, number: int, scenario: Scenario) -> dict[Cell, Count]:
    """Table 5: a mixture whose mean gain is the scenario's, one request in ten losing far more.

    With a mean gain of 0 nothing may be promoted; with a real mean gain only the guards stop it.
    """
    campaigns = simulate(rng, number, max(PAIRS), scenario)
    differences = log_ratios(campaigns.seconds)
    profile = log_ratios(campaigns.profile_seconds).mean(axis=-1)
    strata = balanced_strata(scenario.num_requests)
    fast, slow = scenario.gain + COMPENSATION, scenario.gain - 0.09
    label = f"n = {scenario.num_requests}: 90 % of requests {100 * fast:+.1f} %, 10 % {100 * slow:+.1f} %"
    result = {}
    for pairs in PAIRS:
        found = judge_batch(differences[:, :pairs], profile, strata, Claim())
        row = f"{label}, M = {pairs}"
        wrong = NO_PROMOTION if scenario.gain <= 0 else NOMINAL if scenario.num_requests >= 128 else None
        outcomes = {
            "lower bound over 0": (found.estimate.log_lower > 0, None),
            "promoted without guards": (found.mean_passes, None),
            "promoted": (found.passes, wrong),
        }
        for column, (outcome, limits) in outcomes.items():
            result[Cell(table="tail attack", row=row, column=column, limits=limits)] = count(outcome)
    return result
