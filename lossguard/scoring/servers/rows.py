"""From a server's log-probabilities to columns of forced scores, and what cannot be derived.

A difference of log-probabilities is a difference of logits, so gaps, best tokens and log-probabilities follow exactly.
The logits themselves do not: their common offset is unknown. Here the best logit is 0 and the others are relative to
it, which no rule can mistake for a magnitude: one unit in the last place of 0 is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lossguard.engines.servers.problems import MalformedReplyError
from lossguard.scoring.columns import COLUMN_DTYPES, NOT_FINITE

ROUNDING: Final = 1e-3
"""Nats (and probability) by which numbers in single precision may miss what they must be."""
FLOOR: Final = -9_000.0
"""Servers write minus infinity as -9999, since JSON has no infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLogprobs:
    """What a server says about one position."""

    token: int  # that was served there
    logprob: float  # of it
    top: tuple[tuple[int, float], ...]  # (id, log-probability) of the best ones, in any order; may hold the token
    rank: int | None = None  # 0 is the best; None: the server does not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """How rows are read."""

    top_k: int
    vocab_size: int


_BLANK: Final = {name: NOT_FINITE.get(name, 0) for name in COLUMN_DTYPES if name != "served_id"}
"""A row about which nothing is known; its lists are widened to the top-k."""


def columns_of(rows: Sequence[PositionLogprobs], rules: RowRules) -> dict[str, NDArray[Any]]:
    """Columns of ``ForcedScores`` for n positions. Raises MalformedReplyError, naming the position."""
    made: dict[str, list[Any]] = {name: [] for name in _BLANK}
    for position, row in enumerate(rows):
        try:
            values = _row(row, rules)
        except MalformedReplyError as error:
            raise MalformedReplyError(f"position {position} of the reply: {error}") from error
        for name, value in values.items():
            made[name].append(value)
    return {name: np.array(values) for name, values in made.items()}


def _row(row: PositionLogprobs, rules: RowRules) -> dict[str, Any]:
    _require_top(row, rules)
    values = [value for _, value in row.top] + [row.logprob]
    if not all(np.isfinite(value) and value > FLOOR for value in values):
        return _BLANK | {"top_ids": [-1] * rules.top_k, "top_logits": [0.0] * rules.top_k}
    _require_distribution(row)
    best = sorted({row.token: row.logprob, **dict(row.top)}.items(), key=lambda item: (-item[1], item[0]))
    top = best[: rules.top_k]
    highest = top[0][1]
    listed = [token for token, _ in top]
    return {
        "gap": highest - row.logprob,
        "best_logit": 0.0,
        "rank": listed.index(row.token) if row.token in listed else _rank_below(row, rules),
        "best_id": listed[0],
        "logprob": row.logprob,
        "top_ids": listed,
        "top_logits": [value - highest for _, value in top],
        "finite": True,
    }


def _rank_below(row: PositionLogprobs, rules: RowRules) -> int:
    """Of a token outside the list; without the server's word the least that it can be."""
    return rules.top_k if row.rank is None else max(row.rank, rules.top_k)


def _require_top(row: PositionLogprobs, rules: RowRules) -> None:
    """As many different existing tokens as were asked for, and the served one consistent with them."""
    listed = dict(row.top)
    if len(listed) != len(row.top):
        raise MalformedReplyError("a token is listed twice among the best")
    if len(listed) != rules.top_k:
        raise MalformedReplyError(f"{len(listed)} best tokens where {rules.top_k} were asked for")
    odd = [token for token in listed if not 0 <= token < rules.vocab_size]
    if odd:
        raise MalformedReplyError(f"token {odd[0]} among the best is outside the vocabulary of {rules.vocab_size}")
    own = listed.get(row.token)
    if own is not None and abs(own - row.logprob) > ROUNDING:
        raise MalformedReplyError(f"token {row.token} has the log-probabilities {row.logprob} and {own}")
    if own is None and row.logprob > min(listed.values()) + ROUNDING:
        raise MalformedReplyError(f"token {row.token} is not among the best, with {row.logprob} over the last of them")


def _require_distribution(row: PositionLogprobs) -> None:
    """Log-probabilities of one distribution: none over 0, and together at most 1. Logits are refused here."""
    values = np.array([value for _, value in row.top])
    if max(float(values.max()), row.logprob) > ROUNDING or float(np.exp(values).sum()) > 1 + ROUNDING:
        raise MalformedReplyError(f"the best values (at most {values.max():.4g}) are no log-probabilities")
