"""The noise between two scorers of the same replies: how far two honest computations of one gap lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lossguard.errors import UsageError
from lossguard.records import ForcedScores

QUANTILE: Final = 0.999
NUM_WORST: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """|first - second| over the positions that both scored, in nats; 0 where there is none."""

    max_nats: float
    p999_nats: float
    rms_nats: float

    @classmethod
    def of(cls, first: NDArray[np.float32], second: NDArray[np.float32]) -> Difference:
        """Of two columns of equal length."""
        apart = np.abs(first.astype(np.float64) - second)
        if not apart.size:
            return cls(max_nats=0.0, p999_nats=0.0, rms_nats=0.0)
        return cls(
            max_nats=float(apart.max()),
            p999_nats=float(np.quantile(apart, QUANTILE)),
            rms_nats=float(np.sqrt(np.mean(apart**2))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerNoise:
    """What two scorers say about the same tokens."""

    num_tokens: int
    num_compared: int
    num_one_sided: int  # usable by one of them only: a number that is not finite, or an id that only one knows
    gap: Difference
    logprob: Difference
    num_other_best: int  # compared positions at which they name different best tokens
    other_best_share: float
    other_best_nats: float  # the first one's largest gap between its two best tokens there: a tie if it is small
    worst: tuple[tuple[str, int, float, float], ...]  # (request id, position, both gaps), furthest apart first

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)


def scorer_noise(first: Sequence[ForcedScores], second: Sequence[ForcedScores]) -> ScorerNoise:
    """Compare two scorings, part by part. Raises UsageError LG0517 if they do not score the same tokens."""
    for one, other in zip(first, second, strict=True):
        _require_same(one, other)
    columns = {name: (_joined(first, name), _joined(second, name)) for name in ("gap", "logprob", "best_id")}
    usable = [_joined(side, "finite") & np.isfinite(_joined(side, "gap")) for side in (first, second)]
    both = usable[0] & usable[1]
    gaps = [column[both] for column in columns["gap"]]
    other_best = columns["best_id"][0][both] != columns["best_id"][1][both]
    ties = np.concatenate([item.top_logits[:, 0] - item.top_logits[:, 1] for item in first])[both]
    return ScorerNoise(
        num_tokens=len(both),
        num_compared=int(both.sum()),
        num_one_sided=int((usable[0] ^ usable[1]).sum()),
        gap=Difference.of(gaps[0], gaps[1]),
        logprob=Difference.of(columns["logprob"][0][both], columns["logprob"][1][both]),
        num_other_best=int(other_best.sum()),
        other_best_share=float(other_best.mean()) if other_best.size else 0.0,
        other_best_nats=float(ties[other_best].max(initial=0.0)),
        worst=tuple(_worst(first, np.flatnonzero(both), gaps)),
    )


def _worst(
    first: Sequence[ForcedScores], places: NDArray[np.int64], gaps: Sequence[NDArray[np.float32]]
) -> list[tuple[str, int, float, float]]:
    order = np.argsort(-np.abs(gaps[0].astype(np.float64) - gaps[1]), kind="stable")[:NUM_WORST]
    names = [(name, position) for item in first for name, position in _positions(item)]
    return [(*names[int(places[at])], float(gaps[0][at]), float(gaps[1][at])) for at in order]


def _positions(scores: ForcedScores) -> list[tuple[str, int]]:
    lengths = np.diff(scores.offsets).tolist()
    return [
        (name, position) for name, length in zip(scores.request_ids, lengths, strict=True) for position in range(length)
    ]


def _joined(side: Sequence[ForcedScores], name: str) -> NDArray[Any]:
    return np.concatenate([getattr(item, name) for item in side])


def _require_same(one: ForcedScores, other: ForcedScores) -> None:
    same = one.request_ids == other.request_ids and np.array_equal(one.offsets, other.offsets)
    if not same or not np.array_equal(one.served_id, other.served_id):
        raise UsageError(
            "two scorings are of different tokens",
            why="their differences would measure the text, and not the scorers",
            fix="score the same replies with both scorers",
            code="LG0517",
        )
