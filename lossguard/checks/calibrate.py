"""Thresholds from stock alone, on prompts that the test does not use, before any candidate is scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from lossguard.checks.base import Arm, BoolArray, FloatArray, Thresholds
from lossguard.checks.bounds import bounds_of
from lossguard.checks.clusters import request_of_tokens
from lossguard.checks.delta import clipped_gap, is_mismatch, is_scored, is_tie, top_two_gap, ulp
from lossguard.checks.granularity import reported_granularity
from lossguard.checks.near_tie_comparison import near_tie_comparison
from lossguard.checks.noise_scale import NoiseScale, noise_scale
from lossguard.checks.proportions import binomial_upper
from lossguard.checks.reported import reported_scale
from lossguard.errors import UsageError
from lossguard.records import ForcedScores, Request

_LARGEST_MARGIN = 0.005
_SMALLEST_MARGIN = 0.001
_SMALLEST_EVENT_NATS = 1.0
_LARGEST_EVENT_NATS = 2.0
_LARGEST_BUDGET_SHARE = 0.8
_NEGLIGIBLE_NATS = 1e-6
"""Per token. Where flipping every tie costs less than this, no bias inside ties matters (float32 engines)."""
_LISTED_POSITIONS = 10
_VALUES = (
    "delta_median_nats",
    "delta_max_nats",
    "stock_rate",
    "margin",
    "largest_gap_nats",
    "event_nats",
    "flip_cost_nats",
    "near_tie_budget_nats",
    "recomposition_shift_nats",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationInput:
    """Stock on the calibration prompts, in two batch compositions, and one of them scored twice."""

    requests: Sequence[Request]
    stock: Arm
    recomposed: Arm  # stock served again on the same prompts at another batch composition
    rescored: ForcedScores | None  # stock's outputs scored at another batch size
    logit_dtype: str
    seed: int
    knows_logits: bool = True  # False: the scorer gives log-probabilities, whose best logit is 0 everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Some thresholds, how they were chosen, and what forbids a verdict."""

    values: dict[str, float]
    reason: str
    problem: str | None = None


def calibrate(given: CalibrationInput) -> Thresholds:
    """All thresholds with their reasons; ``problems`` names the checks that they cannot carry.

    Raises UsageError: LG0301 unknown dtype, LG0302 no source for q, LG0303 scorings of different tokens, LG0304 no
    calibration tokens.
    """
    _require_tokens(given)
    noise = noise_scale(given.stock, given.rescored, given.logit_dtype)
    if not given.knows_logits and given.logit_dtype != "float32":
        noise = _at_least_one_step(noise, given.stock)
    delta = _delta(given.stock.scores, noise, given.logit_dtype if given.knows_logits else None)
    # delta is all that the mismatch and tie arrays below look at
    draft = _with(given, noise, {**delta.values})
    rate = _rate(given, draft)
    event = _event(given)
    near_tie = _near_tie(given, draft)
    problems = {name: part.problem for name, part in (("event", event), ("near-tie", near_tie)) if part.problem}
    if noise.problem:
        problems = {"rate": noise.problem, "near-tie": noise.problem, "burst": noise.problem, **problems}
    values = {**delta.values, **rate.values, **event.values, **near_tie.values}
    reasons = (noise.reason, delta.reason, rate.reason, event.reason, near_tie.reason)
    return _with(given, noise, values, reasons, problems)


def margin_of_rate(stock_rate: ArrayLike) -> FloatArray:
    """Margin of the rate rule, a fraction of tokens: min(0.5, max(2 x stock's rate, 0.1)) points."""
    return np.minimum(_LARGEST_MARGIN, np.maximum(2 * np.asarray(stock_rate, dtype=np.float64), _SMALLEST_MARGIN))


def near_tie_budget(flip_cost: ArrayLike, shift: ArrayLike) -> FloatArray:
    """Nats per token: the larger of half the cost of flipping every tie and stock's own shift."""
    return np.maximum(np.asarray(flip_cost, dtype=np.float64) / 2, shift)


def is_usable_budget(budget: ArrayLike, flip_cost: ArrayLike) -> BoolArray:
    """Whether a fault that flips every tie could not hide in the budget."""
    return np.asarray(np.asarray(budget) <= _LARGEST_BUDGET_SHARE * np.asarray(flip_cost))


def _require_tokens(given: CalibrationInput) -> None:
    sizes = [int(is_scored(arm.scores).sum()) for arm in (given.stock, given.recomposed)]
    if min(sizes) > 0:
        return
    raise UsageError(
        f"Calibration has {sizes[0]} scored tokens of stock and {sizes[1]} of stock recomposed.",
        why="every threshold comes from stock's calibration replies.",
        fix="check that stock serves the calibration prompts and that their scores are finite.",
        code="LG0304",
    )


def _with(
    given: CalibrationInput,
    noise: NoiseScale,
    values: dict[str, float],
    reasons: tuple[str, ...] = (),
    problems: dict[str, str] | None = None,
) -> Thresholds:
    return Thresholds(
        logit_dtype=given.logit_dtype,
        q_nats=noise.q_nats,
        **{name: values.get(name, 0.0) for name in _VALUES},
        num_requests=len(given.requests),
        num_tokens=given.stock.scores.num_tokens,
        logprob_nats=reported_scale(given.stock, given.requests),
        reasons=reasons,
        problems=problems or {},
    )


def _at_least_one_step(noise: NoiseScale, stock: Arm) -> NoiseScale:
    """q for a scorer that cannot tell the magnitude of logits: no less than the step of stock's own logits."""
    step = reported_granularity(stock)
    reason = f"{noise.reason}; at least {step.step_nats:.3g}: {step.reason}"
    return replace(noise, q_nats=max(noise.q_nats, step.step_nats), reason=reason)


def _delta(scores: ForcedScores, noise: NoiseScale, dtype: str | None) -> _Part:
    """``dtype`` is None where the magnitude of logits is not known."""
    delta = np.maximum(ulp(scores.best_logit, dtype or "float32"), noise.q_nats)[is_scored(scores)]
    median, largest = float(np.median(delta)), float(delta.max())
    share = float(np.mean(delta > noise.q_nats))
    reason = f"delta median {median:.3g}, max {largest:.3g} nats: one {dtype} ULP at {share:.0%} of tokens, else q"
    if dtype is None:
        reason = f"delta {median:.3g} nats is q alone: the scorer gives log-probabilities, and no magnitude of logits"
    return _Part(values={"delta_median_nats": median, "delta_max_nats": largest}, reason=reason)


def _rate(given: CalibrationInput, draft: Thresholds) -> _Part:
    """Over both services: the margin follows this rate, and twice the tokens keep it from being small by chance."""
    wrong = np.concatenate([is_mismatch(arm.scores, draft) for arm in (given.stock, given.recomposed)])
    rate = float(wrong.mean())
    margin = float(margin_of_rate(rate))
    reason = (
        f"margin {100 * margin:.3g} points: min(0.5, max(2 x stock's calibration rate of {100 * rate:.3g} %, 0.1)) "
        f"over {len(wrong):,} tokens of both calibration services"
    )
    return _Part(values={"stock_rate": rate, "margin": margin}, reason=reason)


def _event(given: CalibrationInput) -> _Part:
    scores = given.stock.scores
    gap = np.where(is_scored(scores), scores.gap, 0.0).astype(np.float64)
    unknown_id = np.isinf(gap)
    largest = float(gap[~unknown_id].max(initial=0.0))
    event = max(_SMALLEST_EVENT_NATS, 4 * largest)
    problem = None
    if event > _LARGEST_EVENT_NATS or unknown_id.any():
        over = np.flatnonzero((4 * gap > _LARGEST_EVENT_NATS) | unknown_id)
        problem = (
            f"stock itself leaves gaps up to {largest:.3g} nats on calibration prompts, so an event could only be told "
            f"from {event:.3g} nats on: {_places(given, over)}"
        )
    reason = f"event {event:.3g} nats: max(1, 4 x stock's largest calibration gap of {largest:.3g})"
    return _Part(values={"largest_gap_nats": largest, "event_nats": event}, reason=reason, problem=problem)


def _places(given: CalibrationInput, tokens: np.ndarray) -> str:
    scores, request = given.stock.scores, request_of_tokens(given.stock.scores)
    places = [
        f"{given.requests[request[token]].id} position {token - scores.offsets[request[token]]} "
        f"(gap {scores.gap[token]:.3g} nats)"
        for token in tokens[:_LISTED_POSITIONS]
    ]
    more = f" and {len(tokens) - _LISTED_POSITIONS} more" if len(tokens) > _LISTED_POSITIONS else ""
    return ", ".join(places) + more


def _near_tie(given: CalibrationInput, draft: Thresholds) -> _Part:
    scores = given.stock.scores
    flip_cost = float(_flip_costs(scores, draft).mean())
    shift = _recomposition_shift(given, draft)
    values = {"flip_cost_nats": flip_cost, "recomposition_shift_nats": shift}
    if _largest_flip_cost(scores, draft) <= _NEGLIGIBLE_NATS:
        reason = f"near-tie budget {_NEGLIGIBLE_NATS:g} nats/token: flipping every tie costs less than that"
        return _Part(values={**values, "near_tie_budget_nats": _NEGLIGIBLE_NATS}, reason=reason)
    budget = float(near_tie_budget(flip_cost, shift))
    problem = None
    if not bool(is_usable_budget(budget, flip_cost)):
        problem = (
            f"stock's own shift between batch compositions is up to {shift:.3g} nats/token, "
            f"over {_LARGEST_BUDGET_SHARE} of what flipping every tie costs ({flip_cost:.3g}): "
            "such a fault could hide in it; calibrate on more prompts"
        )
    reason = (
        f"near-tie budget {budget:.3g} nats/token: the larger of half the cost of flipping every calibration tie "
        f"({flip_cost:.3g}) and the upper bound of stock's shift at another batch composition ({shift:.3g})"
    )
    return _Part(values={**values, "near_tie_budget_nats": budget}, reason=reason, problem=problem)


def _flip_costs(scores: ForcedScores, draft: Thresholds) -> FloatArray:
    """[T] what always picking the lower-ranked token would add at each tie, over what stock picked."""
    added = np.where(is_tie(scores, draft), top_two_gap(scores), 0.0) - clipped_gap(scores, draft)
    return np.where(is_tie(scores, draft), np.maximum(added, 0.0), 0.0)


def _largest_flip_cost(scores: ForcedScores, draft: Thresholds) -> float:
    """Upper bound of the flip cost per token: as many ties as the calibration cannot exclude, at the largest delta."""
    num_ties = int(is_tie(scores, draft).sum())
    return float(binomial_upper(num_ties, scores.num_tokens, 0.05)) * draft.delta_max_nats


def _recomposition_shift(given: CalibrationInput, draft: Thresholds) -> float:
    """One-sided 95 % upper bound of |mean clipped gap of the recomposed arm - of stock|, paired by cluster."""
    comparison = near_tie_comparison(given.requests, given.recomposed.scores, given.stock.scores, draft)
    bounds = bounds_of(comparison, given.seed)
    return max(float(bounds.upper(0.05)[0]), -float(bounds.lower(0.05)[0]), 0.0)
