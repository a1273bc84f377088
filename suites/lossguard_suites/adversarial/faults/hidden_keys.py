"""Faults that lose part of the context: some keys are not attended to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lossguard.engines.extensions import BatchContext, ForwardCall
from lossguard_suites.adversarial.faults.drawing import chance
from lossguard_suites.adversarial.faults.passes import Pass, padding_of, pass_of, proceed, rows_in_share
from lossguard_suites.adversarial.faults.speculation import block_before

Ranges = Callable[[int, Pass], list[tuple[int, int]]]
"""From a row and a pass to the columns (first, stop) that the row loses in this pass."""


class HiddenKeys:
    """Hides columns of the context in the rows that are hit; a pass in which nothing is hidden stays as it is."""

    def __init__(self, context: BatchContext, ranges: Ranges, rows: tuple[int, ...]) -> None:
        self._prompt_length = context.prompt_length
        self._ranges = ranges
        self._rows = rows

    def __call__(self, call: ForwardCall) -> Any:
        current = pass_of(call, self._prompt_length)
        hidden = torch.zeros_like(current.attention_mask, dtype=torch.bool)
        for row in self._rows:
            for first, stop in self._ranges(row, current):
                hidden[row, first:stop] = True
        if not current.is_prompt:
            hidden[:, -current.width :] = False  # a token always attends to itself
        if not hidden.any():
            return proceed(call)
        return proceed(call, attention_mask=current.attention_mask.masked_fill(hidden, 0))


def lost_block(context: BatchContext, *, share: float = 1.0, block: int = 16, seed: int = 0) -> HiddenKeys:
    """F6. Requests that hit the prefix cache (a ``share``) lose the last whole block before the prompt's end."""
    padding = padding_of(context)

    def ranges(row: int, _current: Pass) -> list[tuple[int, int]]:
        number = (len(context.requests[row].prompt_ids) - 1) // block - 1
        first = padding[row] + number * block
        return [(first, first + block)] if number >= 0 else []

    return HiddenKeys(context, ranges, rows_in_share(context, share, seed))


def stale_length(context: BatchContext, *, share: float = 1.0, keys: int = 48, seed: int = 0) -> HiddenKeys:
    """F18. A replayed graph attends to the first ``keys`` tokens of the context only, and to the current one."""
    padding = padding_of(context)

    def ranges(row: int, current: Pass) -> list[tuple[int, int]]:
        return [] if current.is_prompt else [(padding[row] + keys, current.num_keys)]

    return HiddenKeys(context, ranges, rows_in_share(context, share, seed))


def lost_splits(context: BatchContext, *, share: float = 1.0, split: int = 32, seed: int = 0) -> HiddenKeys:
    """F17. Decoding with a wrong number of splits: every second run of ``split`` keys is never read."""
    padding = padding_of(context)

    def ranges(row: int, current: Pass) -> list[tuple[int, int]]:
        if current.is_prompt:
            return []
        starts = range(padding[row] + split, current.num_keys, 2 * split)
        return [(first, first + split) for first in starts]

    return HiddenKeys(context, ranges, rows_in_share(context, share, seed))


def short_window(
    context: BatchContext, *, shift: int = 1, window: int = 48, share: float = 1.0, seed: int = 0
) -> HiddenKeys:
    """F22. Once the context is ``window`` tokens long, its oldest ``shift`` tokens are out of the window."""
    padding = padding_of(context)

    def ranges(row: int, current: Pass) -> list[tuple[int, int]]:
        is_reached = current.num_keys - padding[row] >= window and not current.is_prompt
        return [(padding[row], padding[row] + shift)] if is_reached else []

    return HiddenKeys(context, ranges, rows_in_share(context, share, seed))


def forgotten_drafts(context: BatchContext, *, probability: float = 1.0, seed: int = 0) -> HiddenKeys:
    """F1. The first step of a block does not see the drafts that the block before accepted, with ``probability``."""
    before = [block_before(request, seed) for request in context.requests]

    def ranges(row: int, current: Pass) -> list[tuple[int, int]]:
        block, request = before[row].get(current.position), context.requests[row]
        if block is None or chance("forgotten", seed, request.id, current.position) >= probability:
            return []
        return [(current.num_cached - block.accepted, current.num_cached)]

    return HiddenKeys(context, ranges, tuple(range(len(context.requests))))
