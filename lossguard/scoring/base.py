"""The scorer protocol: teacher-forced scores of served tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lossguard.records import ForcedScores, Request, ServedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringJob:
    """One request with the replies of every arm to it, scored along one prefix tree.

    Arms may be one (calibration) or many; all of them share the request's prompt.
    """

    request: Request
    outputs: tuple[ServedOutput, ...]  # one per arm, in the order of the arms


class Scorer(Protocol):
    """Scores served tokens with the target's own weights and an FP32 LM head."""

    @property
    def vocab_size(self) -> int:
        """Number of rows of the LM head: ids at or above it cannot be scored (gap inf, rank vocab_size)."""

    def fingerprint(self) -> Mapping[str, Any]:
        """Facts that change numerics (JSON values)."""

    def score(self, jobs: Sequence[ScoringJob], *, progress: Callable[[int], None] | None = None) -> list[ForcedScores]:
        """One ForcedScores per arm, requests in the order of ``jobs``.

        ``progress`` is called with the number of tokens just scored. Raises ScorerError.
        """

    def close(self) -> None:
        """Give back memory."""
