"""The tokens to be explained: what the candidate has more of than stock has at equal difficulty."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from lossguard.checks.base import Arm, BoolArray, CheckInput, FloatArray, IntArray
from lossguard.checks.clusters import request_sums
from lossguard.checks.delta import delta_per_token, is_event, is_mismatch, is_tie, top_two_gap
from lossguard.checks.proportions import design_effect

MINIMUM_NUMBER = 5
MINIMUM_Z = 2.33
_DIFFICULTY = np.array([0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0])  # of top-2 gap over delta


class Kind(StrEnum):
    """How large the errors are."""

    EVENTS = "large-margin tokens"
    MISMATCHES = "mismatches"
    TIES = "lower-ranked picks inside ties"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspects:
    """Errors of the candidate of one kind, net of those that stock makes where the choice is as hard."""

    kind: Kind
    tokens: BoolArray  # [T] the candidate's errors
    excess: FloatArray  # [T] error (0 or 1) minus stock's rate of them at equal difficulty
    exposure: FloatArray  # [T] share of the excess that each token would carry were only its difficulty to matter
    num_excess: float
    effective: float  # how many independent errors without background say as much

    @property
    def is_certain(self) -> bool:
        """Whether there are enough of them to look for a pattern."""
        return self.num_excess >= MINIMUM_NUMBER and self.effective >= MINIMUM_Z**2


def find_suspects(given: CheckInput) -> list[Suspects]:
    """Events that stock does not explain, mismatches, and lower-ranked picks: the kinds that are in excess."""
    explained = {(event.request_id, event.position) for event in given.candidate.audit if event.explained}
    found = []
    for kind in Kind:
        masks = [_errors(arm, given, kind) for arm in (given.candidate, given.stock)]
        if kind is Kind.EVENTS:
            masks[0] = masks[0] & ~_places(given.candidate, explained)
        found.append(_suspects(kind, given, masks[0], masks[1]))
    return [suspects for suspects in found if suspects.is_certain]


def _errors(arm: Arm, given: CheckInput, kind: Kind) -> BoolArray:
    if kind is Kind.EVENTS:
        return is_event(arm.scores, given.thresholds)
    if kind is Kind.MISMATCHES:
        return is_mismatch(arm.scores, given.thresholds)
    return np.asarray(is_tie(arm.scores, given.thresholds) & (arm.scores.gap > 0))


def _places(arm: Arm, places: set[tuple[str, int]]) -> BoolArray:
    mask = np.zeros(arm.scores.num_tokens, dtype=np.bool_)
    start_of = {output.request_id: int(arm.scores.offsets[index]) for index, output in enumerate(arm.outputs)}
    mask[[start_of[request_id] + position for request_id, position in places]] = True
    return mask


def difficulty(arm: Arm, given: CheckInput) -> IntArray:
    """[T] bin of the scorer's top-2 gap in units of delta: how easily any path errs there."""
    delta = np.maximum(delta_per_token(arm.scores, given.thresholds), 1e-12)
    return np.searchsorted(_DIFFICULTY, top_two_gap(arm.scores) / delta)


def _suspects(kind: Kind, given: CheckInput, errors: BoolArray, of_stock: BoolArray) -> Suspects:
    num_bins = len(_DIFFICULTY) + 1
    bins, stock_bins = difficulty(given.candidate, given), difficulty(given.stock, given)
    tokens = np.bincount(bins, minlength=num_bins)
    stock_tokens = np.bincount(stock_bins, minlength=num_bins)
    rate = np.bincount(stock_bins[of_stock], minlength=num_bins) / np.maximum(stock_tokens, 1)
    excess = errors - rate[bins]
    by_bin = np.maximum(np.bincount(bins, weights=excess, minlength=num_bins), 0.0)
    total, background = float(excess.sum()), float(rate[bins].sum())
    exposure = (by_bin / np.maximum(tokens, 1) / max(float(by_bin.sum()), 1e-12))[bins]
    return Suspects(
        kind=kind,
        tokens=errors,
        excess=excess,
        exposure=exposure,
        num_excess=total,
        effective=_effective(errors, given.candidate, total, background),
    )


def _effective(errors: BoolArray, arm: Arm, total: float, background: float) -> float:
    """Squared z of the excess: Poisson variance of both counts, times the design effect of requests."""
    sums, sizes = request_sums(errors, arm.scores), np.diff(arm.scores.offsets).astype(np.float64)
    noise = (float(errors.sum()) + background) * float(design_effect(sums, sizes))
    return total**2 / noise if total > 0 and noise > 0 else 0.0
