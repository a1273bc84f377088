"""Faults that serve another token than the one that was chosen; generation goes on from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transformers import LogitsProcessor

from lossguard.engines.extensions import BatchContext
from lossguard_suites.adversarial.faults.drawing import chance, draw
from lossguard_suites.adversarial.faults.passes import rows_in_share

Choice = Callable[[int, int, Any], int | None]
"""From a row, a reply position and the row's ids so far (prompt and reply) to the token that is served, if any."""


class ForcedChoice(LogitsProcessor):
    """Serves what ``choose`` names; rows and positions without a choice stay as they are."""

    def __init__(self, context: BatchContext, choose: Choice) -> None:
        self._prompt_length = context.prompt_length
        self._choose = choose

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        position = input_ids.shape[1] - self._prompt_length
        chosen = {row: self._choose(row, position, input_ids[row]) for row in range(input_ids.shape[0])}
        chosen = {row: token for row, token in chosen.items() if token is not None}
        if not chosen:
            return scores
        faulty = scores.clone()
        for row, token in chosen.items():
            faulty[row] = float("-inf")
            faulty[row, token] = 0.0
        return faulty


def loop_start(
    context: BatchContext, *, share: float = 0.1, after: int = 16, period: int = 6, seed: int = 0
) -> ForcedChoice:
    """F5. Once in a reply, past position ``after``, the token of ``period`` positions ago is served again.

    What follows is honest: a model that is prone to loops goes round from there.
    """
    places = _places(context, share=share, first=max(after, period), seed=seed)
    return ForcedChoice(context, lambda row, position, ids: int(ids[-period]) if places.get(row) == position else None)


def repeated_token(context: BatchContext, *, probability: float = 0.02, seed: int = 0) -> ForcedChoice:
    """F42. The token of the step before is emitted again, with ``probability`` at each step but the first."""

    def choose(row: int, position: int, ids: Any) -> int | None:
        is_again = position > 0 and chance("again", seed, context.requests[row].id, position) < probability
        return int(ids[-1]) if is_again else None

    return ForcedChoice(context, choose)


def zero_in_padding(context: BatchContext, *, share: float = 1.0, seed: int = 0) -> ForcedChoice:
    """F20. Rows with padding read a row that nobody wrote: NaN, of which argmax makes id 0."""
    rows = set(rows_in_share(context, share, seed))
    padded = {row for row in rows if len(context.requests[row].prompt_ids) < context.prompt_length}
    return ForcedChoice(context, lambda row, _position, _ids: 0 if row in padded else None)


def unverified_draft(
    context: BatchContext, *, probability: float = 1.0, matched: int = 2, seed: int = 0
) -> ForcedChoice:
    """F24. The first draft of an n-gram drafter is served unverified, with ``probability``.

    The draft is what followed the last earlier place of the newest ``matched`` tokens.
    """
    first = [context.prompt_length - len(request.prompt_ids) for request in context.requests]

    def choose(row: int, position: int, ids: Any) -> int | None:
        if chance("draft", seed, context.requests[row].id, position) >= probability:
            return None
        text: list[int] = ids[first[row] :].tolist()
        newest = text[-matched:]
        starts = range(len(text) - matched - 1, -1, -1)
        return next((text[at + matched] for at in starts if text[at : at + matched] == newest), None)

    return ForcedChoice(context, choose)


def _places(context: BatchContext, *, share: float, first: int, seed: int) -> Mapping[int, int]:
    """One reply position per row that is hit, from ``first`` on; rows that are too short have none."""
    places = {}
    for row in rows_in_share(context, share, seed):
        request = context.requests[row]
        room = request.sampling.max_tokens - first
        if room > 0:
            places[row] = first + draw(room, "place", seed, request.id, request.repeat_id)
    return places
