"""Delta: the noise scale under which a gap is a near-tie, position by position."""

from __future__ import annotations

import numpy as np

from lossguard.checks.base import BoolArray, FloatArray, Thresholds
from lossguard.errors import UsageError, near_miss
from lossguard.records import ForcedScores

_FRACTION_BITS = {"bfloat16": 7, "float16": 10}
_SMALLEST_EXPONENT = {"bfloat16": -126, "float16": -14}


def ulp(best_logit: np.ndarray, dtype: str) -> FloatArray:
    """Distance between neighbouring values of ``dtype`` at the magnitude of each logit, in nats.

    ``dtype`` is ``bfloat16``, ``float16`` or ``float32``; float32 gives 0, because its rounding is far under any
    noise that matters. Non-finite logits give 0, so that nothing is forgiven there; so does 0, which scorers give
    that cannot tell the magnitude of logits. Raises UsageError (LG0301) for another dtype. Source: IEEE 754 binary
    formats, ``2 ** (floor(log2 |x|) - fraction bits)``.
    """
    logits = np.asarray(best_logit, dtype=np.float64)
    if dtype == "float32":
        return np.zeros_like(logits)
    if dtype not in _FRACTION_BITS:
        raise UsageError(
            f"Logit dtype {dtype!r}.",
            why="delta is one unit in the last place of the served logits, so their format must be known.",
            fix=near_miss(dtype, [*_FRACTION_BITS, "float32"]),
            code="LG0301",
        )
    known = np.isfinite(logits) & (logits != 0)
    _, exponent = np.frexp(np.where(known, logits, 1.0))
    exponent = np.maximum(exponent - 1, _SMALLEST_EXPONENT[dtype])
    return np.where(known, np.ldexp(1.0, exponent - _FRACTION_BITS[dtype]), 0.0)


def delta_per_token(scores: ForcedScores, thresholds: Thresholds) -> FloatArray:
    """``max(ULP at the best logit, q)`` for each of the T tokens, in nats."""
    return np.maximum(ulp(scores.best_logit, thresholds.logit_dtype), thresholds.q_nats)


def is_scored(scores: ForcedScores) -> BoolArray:
    """[T] positions that carry a usable score; the others are no mismatches, and ``scores`` reports them.

    An infinite gap at finite logits is usable: it is an id that the model does not have.
    """
    return np.asarray(scores.finite, dtype=np.bool_) & ~np.isnan(scores.gap) & np.isfinite(scores.best_logit)


def is_mismatch(scores: ForcedScores, thresholds: Thresholds) -> BoolArray:
    """[T] whether the served token lies more than delta under the best one."""
    return is_scored(scores) & (scores.gap.astype(np.float64) > delta_per_token(scores, thresholds))


def is_event(scores: ForcedScores, thresholds: Thresholds) -> BoolArray:
    """[T] whether the gap is over the large-margin threshold."""
    return is_scored(scores) & (scores.gap.astype(np.float64) > thresholds.event_nats)


def clipped_gap(scores: ForcedScores, thresholds: Thresholds) -> FloatArray:
    """[T] gap clipped at delta, in nats; 0 where the position carries no usable score, delta for an infinite gap."""
    usable = is_scored(scores)
    gap = np.where(usable, scores.gap, 0.0).astype(np.float64)
    return np.minimum(gap, delta_per_token(scores, thresholds))


def top_two_gap(scores: ForcedScores) -> FloatArray:
    """[T] best logit minus second best, by the scorer, in nats; inf where the position carries no usable score."""
    best, second = scores.top_logits[:, 0].astype(np.float64), scores.top_logits[:, 1].astype(np.float64)
    usable = is_scored(scores) & np.isfinite(best) & np.isfinite(second)
    return np.where(usable, np.where(usable, best, 0.0) - np.where(usable, second, 0.0), np.inf)


def is_tie(scores: ForcedScores, thresholds: Thresholds) -> BoolArray:
    """[T] whether the scorer's two best tokens lie within delta of each other."""
    return top_two_gap(scores) <= delta_per_token(scores, thresholds)
