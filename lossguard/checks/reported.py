"""Reported log-probabilities beside forced ones, reply by reply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lossguard.checks.base import Arm, FloatArray
from lossguard.records import Request, ServedOutput

STOP_APPENDED = "stop_appended"
"""Telemetry column: 1 where the client put back a stop token that the server left out, which has no log-probability."""

ROUNDING = 1e-4
"""Nats by which two numbers for the same log-probability may differ: they are printed in single precision."""


MINIMUM_POSITIONS = 200
QUANTILE = 0.999


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedReply:
    """One reply that reports log-probabilities, with the forced ones of the same tokens."""

    index: int
    request_id: str
    reported: FloatArray  # [n] what was reported, n as many as there were
    forced: FloatArray  # [m] of the reply's tokens that the server itself listed
    rank_problem: str | None  # why the top rows do not fit, if they do not

    @property
    def differences(self) -> FloatArray:
        """|reported - forced| where both are there and finite."""
        shared = min(len(self.reported), len(self.forced))
        both = np.abs(self.reported[:shared] - self.forced[:shared])
        return np.asarray(both[np.isfinite(both)])

    @property
    def broken(self) -> str | None:
        """What is missing or is no log-probability at all; None if nothing."""
        if len(self.reported) != len(self.forced):
            return f"{len(self.reported)} log-probabilities for {len(self.forced)} tokens"
        bad = np.flatnonzero(~np.isfinite(self.reported) | (self.reported > ROUNDING))
        if bad.size:
            return f"the log-probability at position {bad[0]} is {self.reported[bad[0]]}"
        return self.rank_problem


def reported_replies(arm: Arm, requests: Sequence[Request]) -> Iterator[ReportedReply]:
    """Every reply of an arm that carries log-probabilities."""
    for index, (request, output) in enumerate(zip(requests, arm.outputs, strict=False)):
        if output.logprobs is None:
            continue
        count = num_listed(output)
        start = int(arm.scores.offsets[index])
        forced = arm.scores.logprob[start : start + count].astype(np.float64)
        yield ReportedReply(
            index=index,
            request_id=request.id,
            reported=np.asarray(output.logprobs.served, dtype=np.float64),
            forced=forced,
            rank_problem=_rank_problem(output, count),
        )


def num_listed(output: ServedOutput) -> int:
    """Tokens that the server itself listed."""
    return len(output.ids) - int(any(output.telemetry.get(STOP_APPENDED, ())))


def _rank_problem(output: ServedOutput, count: int) -> str | None:
    """Top rows must be as many as tokens and sorted, and the served token's value must not contradict them.

    A served token among a row's ids has the row's value; one that is not among them cannot be more likely than the
    last of the row.
    """
    reported = output.logprobs
    if reported is None or not reported.top_ids:
        return None
    if len(reported.top_ids) != count or len(reported.top_logprobs) != count:
        return f"{len(reported.top_ids)} rows of best tokens for {count} tokens"
    rows = zip(output.ids, reported.served, reported.top_ids, reported.top_logprobs, strict=False)
    for position, (token, value, ids, values) in enumerate(rows):
        if (problem := _row_problem(token, value, ids, values)) is not None:
            return f"position {position}: {problem}"
    return None


def _row_problem(token: int, value: float, ids: Sequence[int], values: Sequence[float]) -> str | None:
    if not ids or len(ids) != len(values):
        return "no best tokens"
    if not all(np.isfinite(values)):
        return "a best token's log-probability is not finite"
    if any(later > earlier for earlier, later in pairwise(values)):
        return "best tokens are not in order"
    row = dict(zip(ids, values, strict=True))
    if token in row:
        return None if abs(row[token] - value) <= ROUNDING else f"token {token} has {value} and {row[token]}"
    if value > values[-1] + ROUNDING:
        return f"token {token} has {value}, more than the last of the best ({values[-1]}), and is not among them"
    return None


def reported_scale(arm: Arm, requests: Sequence[Request]) -> float | None:
    """99.9th percentile of |reported - forced|, in nats; None if an arm reports fewer than 200 values.

    Replies with more or fewer values than tokens are left out: values beside the wrong tokens would widen the limit.
    """
    replies = reported_replies(arm, requests)
    found = [reply.differences for reply in replies if len(reply.reported) == len(reply.forced)]
    differences = np.concatenate(found) if found else np.empty(0)
    return float(np.quantile(differences, QUANTILE)) if differences.size >= MINIMUM_POSITIONS else None
