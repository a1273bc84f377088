"""The scorer protocol: teacher-forced scores of served tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lossguard.records import ForcedScores, Request, ServedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringJob:
    """One request with the replies of every arm to it, scored along one prefix tree.

    Arms may be one (calibration) or many; all of them share the request's prompt.
    """

    request: Request
    outputs: tuple[ServedOutput, ...]  # one per arm, in the order of the arms


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerCapabilities:
    """What a scorer can tell. What it cannot is said in reasons and reports, and never guessed."""

    logits: bool = True
    """False: log-probabilities only. The best logit is then 0 and the others are relative to it, so that delta has no
    part from the magnitude of logits."""
    num_ranked: int | None = None
    """Ranks from this one on are lower bounds; None: every rank is exact."""
    sampled: bool = True
    """Whether it fills the columns of sampled requests, which need the whole distribution."""


EVERYTHING = ScorerCapabilities()


def capabilities_of(scorer_or_factory: object) -> ScorerCapabilities:
    """Those that it declares as ``capabilities``; all of them where it declares none."""
    found = getattr(scorer_or_factory, "capabilities", EVERYTHING)
    return found if isinstance(found, ScorerCapabilities) else EVERYTHING


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


@runtime_checkable
class PlacedFactory(Protocol):
    """A factory of scorers that write logs, or whose table can be checked before anything runs."""

    @property
    def capabilities(self) -> ScorerCapabilities:
        """Of every scorer that it makes."""

    def check(self, model_path: str, options: Mapping[str, Any]) -> None:
        """Raise UsageError for options that do not fit."""

    def __call__(self, model_path: str, options: Mapping[str, Any]) -> Scorer:
        """A scorer."""

    def in_folder(self, folder: Path) -> Callable[[str, Mapping[str, Any]], Scorer]:
        """The same factory, whose scorers keep their logs in ``folder``."""
