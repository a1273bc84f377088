"""Does looking early, or submitting again, promote what it should not? Tables 4, 7 and 12."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lossguard.timing.base import BoolArray, FloatArray, IntArray
from lossguard.timing.batch import judge_batch
from lossguard.timing.crossover import log_ratios
from lossguard.timing.launch_variance import MINIMUM_PAIRS
from lossguard.timing.noise import SEQUENTIAL_CONFIDENCE, root_mean_square, upper_factor
from lossguard.timing.rules import Claim
from lossguard.timing.sequential import SequentialArrays, SequentialPlan, sequential_arrays
from lossguard.timing.simulation.cells import Cell, Count, Limits, count
from lossguard.timing.simulation.coverage import balanced_strata
from lossguard.timing.simulation.model import Scenario, simulate

NOMINAL = Limits(high=0.05)
ASKED = 0.05  # over 1 % + 2 x noise on these hosts, so that the threshold is the same in every campaign
LOOKS = tuple(range(MINIMUM_PAIRS, 21))
SUBMISSION_PAIRS, NUM_SUBMISSIONS = 4, 20
EFFECTS = (0.0, 0.0025, 0.005, 0.01)  # true log gain over the threshold


def sequential_error(rng: np.random.Generator, number: int, scenario: Scenario) -> dict[Cell, Count]:
    """A look after every pair from 4 to 20: promotion by the boundary alone and by the whole rule, and pairs used."""
    plan = SequentialPlan(looks=LOOKS)
    result = {}
    for effect in EFFECTS:
        differences, profile = _campaigns(rng, number, LOOKS[-1], scenario, effect)
        found = _walk(differences, profile, plan)
        promoted, used = first_true(found.crossed & _fixed_sample(differences, profile, found.pairs), found.pairs)
        futile, stopped = first_true(found.futile, found.pairs)
        column = f"threshold {100 * effect:+.2f} %"
        outcomes = {
            "boundary and fixed-sample rule": (promoted, used),
            "boundary alone": first_true(found.crossed, found.pairs),
            "peeking at the fixed-sample bound (invalid)": first_true(
                _fixed_sample(differences, profile, found.pairs), found.pairs
            ),
            "stopped as futile or promoted": (futile | promoted, np.minimum(used, stopped)),
        }
        for name, (outcome, pairs) in outcomes.items():
            promised = effect == 0 and name == "boundary and fixed-sample rule"
            cell = Cell(
                table="sequential", row=f"{scenario.name}: {name}", column=column,
                limits=NOMINAL if promised else None,
            )  # fmt: skip
            result[cell] = count(outcome, pairs)
    return result


def resubmission(rng: np.random.Generator, number: int, scenario: Scenario) -> dict[Cell, Count]:
    """A patch at the threshold, submitted 20 times with 4 pairs each: pooled in one test, or judged anew each time."""
    plan = SequentialPlan(looks=tuple(range(SUBMISSION_PAIRS, 21, SUBMISSION_PAIRS)))
    differences, profile = _campaigns(rng, number, SUBMISSION_PAIRS * NUM_SUBMISSIONS, scenario, 0.0)
    found = _walk(differences, profile, plan)
    fixed = _fixed_sample(differences, profile, found.pairs)
    rows = {
        "one test over all submissions": found.crossed & fixed,
        "the same, boundary alone": found.crossed,
        "each submission judged anew (invalid)": _anew(differences, profile),
    }
    result = {}
    for name, outcome in rows.items():
        for submissions in (1, 5, 20):
            taken = (
                outcome[:, : _looks_until(found.pairs, submissions)] if "anew" not in name else outcome[:, :submissions]
            )
            promised = submissions == NUM_SUBMISSIONS and name == "one test over all submissions"
            cell = Cell(
                table="re-submission", row=f"{scenario.name}: {name}", column=f"{submissions} submissions",
                limits=NOMINAL if promised else None,
            )  # fmt: skip
            result[cell] = count(np.asarray(taken.any(axis=-1)))
    return result


def first_true(hits: BoolArray, pairs: IntArray) -> tuple[BoolArray, FloatArray]:
    """Whether any look hits, and the pairs used by then (all, if none): [S, looks] -> [S], [S]."""
    anywhere = np.asarray(hits.any(axis=-1))
    return anywhere, np.where(anywhere, pairs[hits.argmax(axis=-1)], pairs[-1]).astype(np.float64)


def _campaigns(
    rng: np.random.Generator, number: int, pairs: int, scenario: Scenario, effect: float
) -> tuple[FloatArray, FloatArray]:
    campaigns = simulate(rng, number, pairs, replace(scenario, gain=float(np.log1p(ASKED)) + effect))
    return log_ratios(campaigns.seconds), log_ratios(campaigns.profile_seconds).mean(axis=-1)


def _walk(differences: FloatArray, profile: FloatArray, plan: SequentialPlan) -> SequentialArrays:
    deviation = root_mean_square(profile) * upper_factor(profile.shape[-1], SEQUENTIAL_CONFIDENCE)
    threshold = np.full(deviation.shape, np.log1p(ASKED))
    return sequential_arrays(differences.mean(axis=-1), threshold, deviation, plan)


def _fixed_sample(differences: FloatArray, profile: FloatArray, looks: IntArray) -> BoolArray:
    strata = balanced_strata(differences.shape[-1])
    return np.stack(
        [judge_batch(differences[:, :look], profile, strata, Claim(amount=ASKED)).passes for look in looks], axis=-1
    )


def _anew(differences: FloatArray, profile: FloatArray) -> BoolArray:
    strata = balanced_strata(differences.shape[-1])
    parts = [
        differences[:, start : start + SUBMISSION_PAIRS] for start in range(0, differences.shape[1], SUBMISSION_PAIRS)
    ]
    return np.stack([judge_batch(part, profile, strata, Claim(amount=ASKED)).passes for part in parts], axis=-1)


def _looks_until(pairs: IntArray, submissions: int) -> int:
    return int(np.searchsorted(pairs, submissions * SUBMISSION_PAIRS, side="right"))
