"""Simulated mismatch counts of two arms: what error rates and power are measured on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from lossguard.checks.base import FloatArray
from lossguard.checks.clusters import PairedSums

Kind = Literal["none", "spread", "bursty", "late"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_BURSTY_SHARE = 0.05
"""Of requests, which carry a bursty excess alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Beta-binomial mismatches on shared prompts, one request per cluster.

    ``excess`` is the candidate's true excess over all tokens (a fraction): ``spread`` evenly, ``bursty`` in 5 % of
    the requests, ``late`` after the median length only. ``lengths`` are reply lengths to draw from, for each arm.
    ``is_shared``: both arms' rates on a prompt are the same draw, as when the prompt makes them; else independent.
    """

    rate: float
    rho: float
    lengths: tuple[int, ...]
    num_clusters: int
    excess: float = 0.0
    kind: Kind = "none"
    is_shared: bool = True


def simulate_pairs(simulation: Simulation, num_runs: int, seed: int) -> PairedSums:
    """[num_runs, num_clusters] mismatches and tokens of both arms."""
    generator = np.random.default_rng(seed)
    size = (num_runs, simulation.num_clusters)
    tokens = [generator.choice(np.array(simulation.lengths), size=size) for _ in range(2)]
    shares = _shares(simulation, size, generator)
    other = shares if simulation.is_shared else _shares(simulation, size, generator)
    added = _added(simulation, tokens[0], generator)
    candidate = generator.binomial(tokens[0], np.clip(shares + added, 0.0, 1.0))
    stock = generator.binomial(tokens[1], other)
    return PairedSums(
        candidate=candidate.astype(np.float64),
        candidate_tokens=tokens[0].astype(np.float64),
        stock=stock.astype(np.float64),
        stock_tokens=tokens[1].astype(np.float64),
    )


def _shares(simulation: Simulation, size: tuple[int, int], generator: np.random.Generator) -> FloatArray:
    if simulation.rho <= 0 or simulation.rate <= 0:
        return np.full(size, simulation.rate)
    strength = (1 - simulation.rho) / simulation.rho
    return generator.beta(simulation.rate * strength, (1 - simulation.rate) * strength, size=size)


def _added(simulation: Simulation, tokens: np.ndarray, generator: np.random.Generator) -> FloatArray:
    if simulation.kind == "none":
        return np.zeros(tokens.shape)
    if simulation.kind == "spread":
        return np.full(tokens.shape, simulation.excess)
    if simulation.kind == "bursty":
        hit = generator.random(tokens.shape) < _BURSTY_SHARE
        return np.where(hit, simulation.excess / _BURSTY_SHARE, 0.0)
    late = np.maximum(tokens - np.median(simulation.lengths), 0.0) / tokens
    share = (late * tokens).sum(axis=1, keepdims=True) / tokens.sum(axis=1, keepdims=True)
    return np.asarray(late * simulation.excess / np.maximum(share, 1e-12))
