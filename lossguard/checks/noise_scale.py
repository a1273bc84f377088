"""q: the noise scale of a gap, from what stock reports or from a second scoring at another batch size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import Arm, FloatArray
from lossguard.checks.delta import top_two_gap
from lossguard.errors import UsageError
from lossguard.records import ForcedScores, ReportedLogprobs

MINIMUM_POSITIONS = 20
_NEAR_NATS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScale:
    """q in nats, how many positions it rests on, and how it was chosen."""

    q_nats: float
    num_positions: int
    reason: str
    problem: str | None = None  # why no rate or near-tie verdict may rest on it


def noise_scale(stock: Arm, rescored: ForcedScores | None, logit_dtype: str) -> NoiseScale:
    """q by the first source that applies: reported log-probabilities (16-bit engines), else a second scoring.

    Raises UsageError (LG0302) if there is neither.
    """
    reported = np.empty(0) if logit_dtype == "float32" else reported_differences(stock)
    if reported.size and (reported.size >= MINIMUM_POSITIONS or rescored is None):
        return _scale(reported, float(np.median(reported)), "median of |served logit difference - forced one|")
    if rescored is None:
        raise UsageError(
            f"Stock reports no top log-probabilities that can be used (logits in {logit_dtype}), and its calibration "
            "replies were not scored a second time.",
            why="without either, nothing tells how far two correct computations of one gap lie apart.",
            fix="score the calibration replies again at another batch size, or request at least 2 log-probabilities.",
            code="LG0302",
        )
    differences = rescored_differences(stock.scores, rescored)
    scale = float(np.quantile(differences, 0.99)) if differences.size else 0.0
    return _scale(differences, scale, "99th percentile of |gap - gap scored at another batch size|")


def _scale(differences: FloatArray, q_nats: float, source: str) -> NoiseScale:
    number = int(differences.size)
    problem = None
    if number < MINIMUM_POSITIONS:
        problem = f"delta rests on {number} calibration positions, fewer than {MINIMUM_POSITIONS}"
    reason = f"q = {q_nats:.3g} nats: {source} over {number} positions with a top-2 gap under {_NEAR_NATS:g} nat"
    return NoiseScale(q_nats=q_nats, num_positions=number, reason=reason, problem=problem)


def reported_differences(stock: Arm) -> FloatArray:
    """|difference of the reported log-probabilities of the scorer's two best tokens - forced gap between them|.

    A difference of log-probabilities is a difference of logits. The served token's own gap would be no measure:
    under greedy decoding it is 0 by the served logits everywhere. Positions whose two best tokens are not both
    reported are left out.
    """
    gap = top_two_gap(stock.scores)
    found: list[float] = []
    for index, output in enumerate(stock.outputs):
        if output.logprobs is None:
            continue
        start, stop = int(stock.scores.offsets[index]), int(stock.scores.offsets[index + 1])
        for position in np.flatnonzero(gap[start:stop] < _NEAR_NATS):
            token = start + int(position)
            served = _reported_difference(output.logprobs, int(position), stock.scores.top_ids[token])
            if served is not None:
                found.append(abs(served - float(gap[token])))
    return np.array(found, dtype=np.float64)


def _reported_difference(reported: ReportedLogprobs, position: int, best_two: np.ndarray) -> float | None:
    if position >= len(reported.top_ids) or position >= len(reported.top_logprobs):
        return None
    row = dict(zip(reported.top_ids[position], reported.top_logprobs[position], strict=False))
    best, second = row.get(int(best_two[0])), row.get(int(best_two[1]))
    if best is None or second is None or not np.isfinite(best) or not np.isfinite(second):
        return None
    return best - second


def rescored_differences(scores: ForcedScores, rescored: ForcedScores) -> FloatArray:
    """|gap between the two best tokens - the same two tokens' gap in the other scoring|, near positions only.

    Raises UsageError (LG0303) if the two do not score the same tokens.
    """
    if not np.array_equal(scores.served_id, rescored.served_id) or not np.array_equal(scores.offsets, rescored.offsets):
        raise UsageError(
            "The second scoring of the calibration replies covers other tokens than the first.",
            why="their differences would measure the text, not the noise.",
            fix="score the same outputs, in the same order, at another batch size.",
            code="LG0303",
        )
    gap = top_two_gap(scores)
    other_best = _logit_of(rescored, scores.top_ids[:, 0])
    other_second = _logit_of(rescored, scores.top_ids[:, 1])
    near = (gap < _NEAR_NATS) & np.isfinite(other_best) & np.isfinite(other_second) & rescored.finite
    return np.abs((other_best[near] - other_second[near]) - gap[near])


def _logit_of(scores: ForcedScores, token_ids: np.ndarray) -> FloatArray:
    """[T] logit of one token per position, NaN where it is not among the top k."""
    hit = scores.top_ids == token_ids[:, None]
    logits = np.where(hit, scores.top_logits.astype(np.float64), 0.0).sum(axis=1)
    return np.where(hit.any(axis=1), logits, np.nan)
