"""Faults in which a step sees drafts that were rejected, or another request's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lossguard.engines.extensions import BatchContext, ForwardCall
from lossguard_suites.adversarial.faults.drawing import chance
from lossguard_suites.adversarial.faults.passes import Pass, drop_columns, pass_of, proceed
from lossguard_suites.adversarial.faults.speculation import NUM_DRAFTS, block_before

Excess = Callable[[int, Pass], int]
"""From a row and a pass to the drafts that its step sees too many (above 0) or too few (below 0)."""


class RejectedDrafts:
    """Lets a step see drafts that were rejected before it, or hides accepted ones from it.

    The drafts stand before the current token, in the places that they were drafted for; which tokens they are follows
    from the step before: its second-best token, then its third-best. Afterwards they are gone from the cache, while
    what the current token made of them stays.
    """

    def __init__(self, context: BatchContext, excess: Excess) -> None:
        self._num_rows = len(context.requests)
        self._prompt_length = context.prompt_length
        self._excess = excess
        self._drafts: torch.Tensor | None = None  # int64 [B, NUM_DRAFTS]

    def __call__(self, call: ForwardCall) -> Any:
        current = pass_of(call, self._prompt_length)
        drafts = self._drafts
        excess = [0 if drafts is None else self._excess(row, current) for row in range(self._num_rows)]
        output = self._with_drafts(call, current, drafts, excess) if drafts is not None and any(excess) else None
        output = proceed(call) if output is None else output
        self._drafts = output.logits[:, -1].topk(NUM_DRAFTS + 1, dim=-1).indices[:, 1:]
        return output

    def _with_drafts(self, call: ForwardCall, current: Pass, drafts: torch.Tensor, excess: list[int]) -> Any:
        number = max(*excess, 0)
        mask = current.attention_mask
        seen = torch.tensor([[at < extra for at in range(number)] for extra in excess], device=mask.device)
        kept = mask[:, : current.num_cached].clone()
        for row, extra in enumerate(excess):
            if extra < 0:
                kept[row, extra:] = 0
        steps = torch.arange(number, device=mask.device)
        output = proceed(
            call,
            input_ids=torch.cat([drafts[:, :number], current.input_ids], dim=1),
            attention_mask=torch.cat([kept, seen.to(mask.dtype).reshape(len(excess), number), mask[:, -1:]], dim=1),
            position_ids=torch.cat([current.position_ids + steps, current.position_ids], dim=1),
        )
        if number:
            drop_columns(call, current.num_cached, number)
        return output


def kept_drafts(
    context: BatchContext, *, probability: float = 1.0, every_step: bool = False, seed: int = 0
) -> RejectedDrafts:
    """F2 and F3. Rejected drafts are not rolled back, with ``probability``.

    The first step of the next block sees them; with ``every_step`` all its steps do.
    """
    before = [block_before(request, seed) for request in context.requests]

    def excess(row: int, current: Pass) -> int:
        starts = [start for start in before[row] if start <= current.position]
        if not starts or (not every_step and starts[-1] != current.position):
            return 0
        if chance("kept", seed, context.requests[row].id, starts[-1]) >= probability:
            return 0
        return before[row][starts[-1]].rejected

    return RejectedDrafts(context, excess)


def neighbours_count(context: BatchContext, *, probability: float = 0.1, seed: int = 0) -> RejectedDrafts:
    """F8. A step takes the next row's number of accepted drafts for its own, with ``probability``.

    Where the neighbour had more, rejected drafts are seen; where it had fewer, accepted ones are not. Alone in its
    batch a request is served right.
    """
    before = [block_before(request, seed) for request in context.requests]
    num_rows = len(context.requests)

    def excess(row: int, current: Pass) -> int:
        block, request = before[row].get(current.position), context.requests[row]
        if block is None or chance("count", seed, request.id, current.position) >= probability:
            return 0
        other = [start for start in before[(row + 1) % num_rows] if start <= current.position]
        return before[(row + 1) % num_rows][other[-1]].accepted - block.accepted if other else 0

    return RejectedDrafts(context, excess)
