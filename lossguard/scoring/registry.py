"""Scorers by name: the entry-point group ``lossguard.scorers``, and the built-in ``torch``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, cast

from lossguard.errors import UsageError, near_miss
from lossguard.scoring.base import Scorer

ScorerFactory = Callable[[str, Mapping[str, Any]], Scorer]

BUILT_IN = {
    "sglang": "lossguard.scoring.servers.factories:sglang_scorer",
    "torch": "lossguard.scoring.torch_scorer:torch_scorer_factory",
    "vllm": "lossguard.scoring.servers.factories:vllm_scorer",
}
GROUP = "lossguard.scorers"


def scorer_kinds() -> tuple[str, ...]:
    """The kinds that a configuration may name, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)} | BUILT_IN.keys()))


def scorer_factory(kind: str) -> ScorerFactory:
    """The factory ``(model_path, options) -> Scorer``; ``kind`` is a registered name or ``module:factory``.

    Raises UsageError LG0609 (unknown) or LG0610 (not installed).
    """
    targets = {point.name: point.value for point in entry_points(group=GROUP)} | BUILT_IN
    if ":" in kind:
        targets[kind] = kind
    if kind not in targets:
        raise UsageError(
            f"no scorer is called {kind!r}. {near_miss(kind, targets)}",
            why="scores from another scorer than the one asked for would be other numbers",
            fix='correct [scorer] engine, for instance engine = "torch"',
            code="LG0609",
        )
    module, _, attribute = targets[kind].partition(":")
    try:
        return cast(ScorerFactory, getattr(importlib.import_module(module), attribute))
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the scorer {kind!r} needs the package {error.name!r}, which is not installed",
            why="without a scorer there are no forced scores and no verdict",
            fix="pip install 'lossguard[transformers]'",
            code="LG0610",
        ) from error


def sampled_not_scored(kind: str) -> UsageError:
    """For a plan of sampled replies with a scorer that cannot score them (LG0516)."""
    return UsageError(
        f"the scorer {kind!r} cannot score sampled replies",
        why="it gives the best few log-probabilities of a position, and the sampled columns need all of them",
        fix='score with [scorer] engine = "torch", or judge greedy replies',
        code="LG0516",
    )
