"""Faults in the positions that the rotary embedding is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lossguard.engines.extensions import BatchContext, ForwardCall
from lossguard_suites.adversarial.faults.drawing import chance
from lossguard_suites.adversarial.faults.passes import Pass, padding_of, pass_of, proceed, rows_in_share
from lossguard_suites.adversarial.faults.speculation import block_before

Change = Callable[[int, Pass], torch.Tensor]
"""From a row and a pass to the row's positions, [width]."""


class OtherPositions:
    """Changes positions in the rows that are hit."""

    def __init__(self, context: BatchContext, change: Change, rows: tuple[int, ...]) -> None:
        self._prompt_length = context.prompt_length
        self._change = change
        self._rows = rows

    def __call__(self, call: ForwardCall) -> Any:
        current = pass_of(call, self._prompt_length)
        changed = current.position_ids.expand(current.input_ids.shape[0], -1).clone()
        for row in self._rows:
            changed[row] = self._change(row, current)
        if torch.equal(changed, current.position_ids.expand_as(changed)):
            return proceed(call)
        return proceed(call, position_ids=changed)


def frozen_positions(context: BatchContext, *, share: float = 1.0, limit: int = 64, seed: int = 0) -> OtherPositions:
    """F21. A table of ``limit`` rotary angles: later tokens all get the last one."""

    def change(row: int, current: Pass) -> torch.Tensor:
        return current.position_ids[row].clamp(max=limit - 1)

    return OtherPositions(context, change, rows_in_share(context, share, seed))


def restarted_positions(context: BatchContext, *, share: float = 1.0, block: int = 16, seed: int = 0) -> OtherPositions:
    """F10. After a cache hit (a ``share``) of one ``block``, the rest of the prompt starts at position 0."""
    padding = padding_of(context)

    def change(row: int, current: Pass) -> torch.Tensor:
        positions = current.position_ids[row]
        if not current.is_prompt or current.width - padding[row] <= block:
            return positions
        is_rest = torch.arange(current.width, device=positions.device) >= padding[row] + block
        return torch.where(is_rest, positions - block, positions)

    return OtherPositions(context, change, rows_in_share(context, share, seed))


def late_positions(context: BatchContext, *, probability: float = 1.0, shift: int = 1, seed: int = 0) -> OtherPositions:
    """F23. The first step of a block that follows accepted drafts is ``shift`` positions late, with ``probability``."""
    before = [block_before(request, seed) for request in context.requests]

    def change(row: int, current: Pass) -> torch.Tensor:
        positions, block = current.position_ids[row], before[row].get(current.position)
        is_wrong = block is not None and block.accepted > 0
        if is_wrong and chance("late", seed, context.requests[row].id, current.position) < probability:
            return positions + shift
        return positions

    return OtherPositions(context, change, tuple(range(len(context.requests))))


def shifted_reply(context: BatchContext, *, shift: int = 1) -> OtherPositions:
    """F26. Every pass after the first is ``shift`` positions late; planted in a drafter it costs only speed."""

    def change(row: int, current: Pass) -> torch.Tensor:
        positions = current.position_ids[row if current.position_ids.shape[0] > 1 else 0]
        return positions if current.is_prompt else positions + shift

    return OtherPositions(context, change, tuple(range(len(context.requests))))
