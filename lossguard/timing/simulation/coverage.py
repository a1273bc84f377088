"""Does the lower bound hold? Tables 1, 9 and 10, through the estimator itself."""

from __future__ import annotations

import numpy as np

from lossguard.timing.base import BoolArray, FloatArray, LaunchRule
from lossguard.timing.crossover import log_ratios
from lossguard.timing.estimator import estimate_arrays
from lossguard.timing.guards import stratum_guard, tail_guard
from lossguard.timing.launch_variance import MINIMUM_PAIRS, choose_launch_rule
from lossguard.timing.simulation.cells import Cell, Count, Limits, count
from lossguard.timing.simulation.model import Campaigns, Scenario, simulate

HONEST = Limits(low=0.93, high=0.995, chance_may_exceed=True)
AT_LEAST = Limits(low=0.93)
MOST_PAIRS = 8
_PROMISED = ("stratum guard, kinds known", "both guards, kinds unknown")


def even_coverage(rng: np.random.Generator, number: int, scenario: Scenario) -> dict[Cell, Count]:
    """Table 1: share of campaigns whose bound lies at or under the true gain, with its mean distance, M = 1 to 8.

    The cells of a row share their campaigns: M pairs are the first M of 8.
    """
    differences, profile, _ = _ratios(rng, number, scenario)
    result = {}
    for pairs in range(1, MOST_PAIRS + 1):
        lower = estimate_arrays(differences[:, :pairs], profile, launch_rule=choose_launch_rule(pairs)[0]).log_lower
        limits = HONEST if pairs >= MINIMUM_PAIRS else None
        result[Cell(table="coverage", row=scenario.name, column=f"M = {pairs}", limits=limits)] = count(
            lower <= scenario.gain, scenario.gain - lower
        )
    return result


def noisier_candidate(rng: np.random.Generator, number: int, scenario: Scenario) -> dict[Cell, Count]:
    """Table 10: both launch rules, M = 2 to 8; the promotion rule must hold from 3 pairs on."""
    differences, profile, _ = _ratios(rng, number, scenario)
    result = {}
    rules: tuple[tuple[LaunchRule, str], ...] = (("largest", "promotion rule"), ("pooled", "screening rule"))
    for rule, name in rules:
        for pairs in range(2, MOST_PAIRS + 1):
            if rule == "pooled" and pairs >= MINIMUM_PAIRS:
                continue
            lower = estimate_arrays(differences[:, :pairs], profile, launch_rule=rule).log_lower
            limits = HONEST if rule == "largest" and pairs >= 3 else None
            row = f"{scenario.name}, {name}"
            result[Cell(table="coverage", row=row, column=f"M = {pairs}", limits=limits)] = count(
                lower <= scenario.gain, scenario.gain - lower
            )
    return result


def suite_coverage(rng: np.random.Generator, number: int, scenario: Scenario) -> dict[Cell, Count]:
    """Table 9: the suite estimand covers the mean gain of these very requests."""
    differences, profile, campaigns = _ratios(rng, number, scenario)
    truth = campaigns.gains.mean(axis=-1)
    result = {}
    for pairs in range(MINIMUM_PAIRS, MOST_PAIRS + 1):
        found = estimate_arrays(differences[:, :pairs], profile, launch_rule="largest", requests_are_sample=False)
        row = f"suite estimand: {scenario.name}"
        result[Cell(table="coverage", row=row, column=f"M = {pairs}", limits=HONEST)] = count(
            found.log_lower <= truth, truth - found.log_lower
        )
    return result


def skewed_coverage(rng: np.random.Generator, number: int, scenario: Scenario) -> dict[Cell, Count]:
    """S5: the bound alone, and claims that pass the guards.

    An error is a claim: a bound over the truth that no guard stops. "kinds known": the losing requests are a stratum of
    their own. "kinds unknown": four strata that have nothing to do with the loss; there the stratum guard can do
    nothing, and the tail guard must.
    """
    differences, profile, campaigns = _ratios(rng, number, scenario)
    alone = np.stack([campaigns.loses, ~campaigns.loses], axis=-1).astype(np.float64)
    unrelated = balanced_strata(scenario.num_requests)
    result = {}
    for pairs in range(MINIMUM_PAIRS, MOST_PAIRS + 1, 2):
        part = differences[:, :pairs]
        holds = estimate_arrays(part, profile, launch_rule="largest").log_lower <= scenario.gain
        known, unknown = (_stopped(part, strata, profile) for strata in (alone, unrelated))
        rows = {
            "bound alone": holds,
            "stratum guard, kinds known": holds | known,
            "stratum guard, kinds unknown": holds | unknown,
            "both guards, kinds unknown": holds | unknown | ~tail_guard(part).within,
        }
        for name, outcome in rows.items():
            promised = scenario.num_requests >= 128 and name in _PROMISED
            cell = Cell(
                table="skewed", row=f"{scenario.name}: {name}", column=f"M = {pairs}",
                limits=AT_LEAST if promised else None,
            )  # fmt: skip
            result[cell] = count(outcome)
    return result


def balanced_strata(num_requests: int, number: int = 4) -> FloatArray:
    """[N, K] membership of strata of equal size."""
    return np.eye(number)[np.arange(num_requests) % number]


def _stopped(differences: FloatArray, strata: FloatArray, profile: FloatArray) -> BoolArray:
    return np.asarray(stratum_guard(differences, strata, profile, launch_rule="largest").breached.any(axis=-1))


def _ratios(rng: np.random.Generator, number: int, scenario: Scenario) -> tuple[FloatArray, FloatArray, Campaigns]:
    campaigns = simulate(rng, number, MOST_PAIRS, scenario)
    return log_ratios(campaigns.seconds), log_ratios(campaigns.profile_seconds).mean(axis=-1), campaigns
