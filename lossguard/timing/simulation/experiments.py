"""Every experiment of the proof, cut into chunks that any number of processes may share."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from lossguard.timing.simulation.cells import Cell, Count
from lossguard.timing.simulation.coverage import even_coverage, noisier_candidate, skewed_coverage, suite_coverage
from lossguard.timing.simulation.model import Scenario
from lossguard.timing.simulation.promotion import non_inferiority, promotion, tail_attack
from lossguard.timing.simulation.scenarios import (
    EVEN,
    HOSTS,
    NOISIER_CANDIDATE,
    SEQUENTIAL,
    SEQUENTIAL_NOISIER,
    skewed,
)
from lossguard.timing.simulation.sequences import resubmission, sequential_error

CHUNK = 200  # campaigns drawn at once; part of the seed, hence fixed
GAINS = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03)
Simulate = Callable[[np.random.Generator, int, Scenario], dict[Cell, Count]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A function that simulates campaigns of one scenario and counts them."""

    function: Simulate
    scenario: Scenario

    @property
    def name(self) -> str:
        """Unique; enters the seed."""
        return f"{self.function.__name__}: {self.scenario.name}, gain {self.scenario.gain:.6f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of one experiment. Its campaigns follow from the seed and its place alone."""

    experiment: Experiment
    index: int
    number: int
    seed: int

    def run(self) -> dict[Cell, Count]:
        """Simulate and count."""
        key = [self.seed, zlib.crc32(self.experiment.name.encode()), self.index]
        return self.experiment.function(np.random.default_rng(key), self.number, self.experiment.scenario)


def experiments() -> tuple[Experiment, ...]:
    """All experiments, in the order of the tables."""
    coverage = [
        *((even_coverage, scenario) for scenario in EVEN),
        (noisier_candidate, NOISIER_CANDIDATE),
        (suite_coverage, EVEN[-1]),
        *((skewed_coverage, skewed(number)) for number in (32, 128, 256)),
    ]
    promotions = [
        (promotion, _with_gain(host, gain)) for host in (*HOSTS, EVEN[-1], NOISIER_CANDIDATE) for gain in GAINS
    ]
    inferiority = [(non_inferiority, scenario) for scenario in (EVEN[2], EVEN[3], NOISIER_CANDIDATE)]
    attacks = [(tail_attack, skewed(number, gain)) for number in (32, 128) for gain in (0.0, 0.03)]
    sequences = [
        *((sequential_error, scenario) for scenario in (SEQUENTIAL, SEQUENTIAL_NOISIER)),
        *((resubmission, scenario) for scenario in (SEQUENTIAL, SEQUENTIAL_NOISIER)),
    ]
    pairs = [*coverage, *promotions, *inferiority, *attacks, *sequences]
    return tuple(Experiment(function=function, scenario=scenario) for function, scenario in pairs)


def chunks(given: tuple[Experiment, ...], *, num_campaigns: int, seed: int) -> tuple[Chunk, ...]:
    """The pieces of experiments, ``num_campaigns`` each; the last piece of each may be smaller."""
    return tuple(
        Chunk(experiment=experiment, index=index, number=min(CHUNK, num_campaigns - index * CHUNK), seed=seed)
        for experiment in given
        for index in range(-(-num_campaigns // CHUNK))
    )


def _with_gain(scenario: Scenario, gain: float) -> Scenario:
    return replace(scenario, gain=float(np.log1p(gain)))
