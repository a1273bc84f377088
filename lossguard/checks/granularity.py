"""How coarse served logits are, from the log-probabilities that stock itself reports.

Logits in a 16-bit format are multiples of the unit in their last place, and differences of log-probabilities are
differences of logits: their common step is that unit, without the magnitude of any logit being known. It stands in for
the unit at the best logit where a scorer gives log-probabilities only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from lossguard.checks.base import Arm, FloatArray
from lossguard.records import ServedOutput

STEPS: Final = tuple(2.0**-power for power in range(1, 8))
"""Nats, coarsest first. bfloat16 logits of 1 to 64 have steps from 2^-7 to 2^-2."""
TOLERANCE: Final = 1e-4  # by which a reported difference may miss a multiple: values are in single precision
NUM_DIFFERENCES: Final = 2  # of a position, at least: one alone is often a multiple of a coarser step by chance
MINIMUM_POSITIONS: Final = 20
MOSTLY: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Granularity:
    """``step_nats`` is 0 where no common step is seen."""

    step_nats: float
    num_positions: int
    reason: str


def reported_granularity(stock: Arm) -> Granularity:
    """The median over positions of the coarsest step that all reported differences there are multiples of."""
    steps = np.array([_step(row) for output in stock.outputs for row in _differences(output)])
    count, share = steps.size, float(np.mean(steps > 0)) if steps.size else 0.0
    if count < MINIMUM_POSITIONS or share < MOSTLY:
        seen = f"at {share:.0%} of {count} positions with reported log-probabilities"
        return Granularity(step_nats=0.0, num_positions=count, reason=f"a step of the served logits is seen {seen}")
    step = float(np.median(steps))
    reason = f"stock's reported log-probabilities differ by multiples of {step:.3g} nats (median of {count} positions)"
    return Granularity(step_nats=step, num_positions=count, reason=reason)


def _differences(output: ServedOutput) -> list[FloatArray]:
    """Distances of the reported best tokens from the best, for each position with enough of them."""
    if output.logprobs is None:
        return []
    rows = [np.asarray(row, dtype=np.float64) for row in output.logprobs.top_logprobs]
    return [row[0] - row[1:] for row in rows if row.size > NUM_DIFFERENCES and np.isfinite(row).all()]


def _step(differences: FloatArray) -> float:
    for step in STEPS:
        if np.abs(differences - step * np.round(differences / step)).max() <= TOLERANCE:
            return step
    return 0.0
