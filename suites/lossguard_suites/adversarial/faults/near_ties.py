"""F66: the lower-ranked token of every near-tie. Only a budget over all near-ties can see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import LogitsProcessor

from lossguard.engines.extensions import BatchContext
from lossguard_suites.adversarial.faults.drawing import chance
from lossguard_suites.adversarial.faults.passes import rows_in_share

BFLOAT16_FRACTION_BITS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Ties:
    """Which near-ties are exchanged: those of a share of the replies, and of them a drawn share."""

    context: BatchContext
    share: float
    flipped: float
    seed: int

    def is_flipped(self, row: int, position: int) -> bool:
        """Whether a tie of that row at that position of the reply falls the other way."""
        request = self.context.requests[row]
        return chance("flip", self.seed, request.id, request.repeat_id, position) < self.flipped


class NearTieSwap(LogitsProcessor):
    """Exchanges the scores of the best two tokens wherever they are close. ``ties`` None: everywhere."""

    def __init__(self, delta: float | None, ties: Ties | None = None) -> None:
        self._delta = delta
        self._ties = ties
        self._rows = () if ties is None else rows_in_share(ties.context, ties.share, ties.seed)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        best = scores.argmax(dim=-1, keepdim=True)  # [B, 1]
        first = scores.gather(1, best)
        without_best = scores.scatter(1, best, float("-inf"))
        runner_up = without_best.argmax(dim=-1, keepdim=True)
        second = scores.gather(1, runner_up)
        limit = bfloat16_step(first) if self._delta is None else torch.full_like(first, self._delta)
        close = first - second <= limit  # [B, 1]
        if self._ties is not None:
            position = input_ids.shape[1] - self._ties.context.prompt_length
            hit = torch.zeros_like(close)
            hit[[row for row in self._rows if self._ties.is_flipped(row, position)]] = True
            close = close & hit
        # past the best, so that an exact tie is not decided by the lower id
        raised = torch.nextafter(first, torch.full_like(first, float("inf")))
        swapped = scores.scatter(1, best, second).scatter(1, runner_up, raised)
        return torch.where(close, swapped, scores)


def bfloat16_step(values: torch.Tensor) -> torch.Tensor:
    """Distance between neighbouring bfloat16 numbers at these magnitudes: 0.03125 for 4 to 8, 0.125 for 16 to 32."""
    exponent = torch.floor(torch.log2(values.abs().clamp_min(torch.finfo(torch.bfloat16).tiny)))
    return torch.exp2(exponent - BFLOAT16_FRACTION_BITS)


def swap_near_ties(
    context: BatchContext, *, delta: float | None = None, share: float = 1.0, flipped: float = 1.0, seed: int = 0
) -> NearTieSwap:
    """F66. A near-tie is a top-2 gap of at most ``delta`` nats; without it, of one bfloat16 step.

    A ``share`` of the replies is hit, and of their near-ties the drawn share ``flipped``: arithmetic of another kind
    exchanges about half of them, a wrong rule all. Raises ValueError for a negative ``delta``.
    """
    if delta is not None and delta < 0:
        raise ValueError(f"delta is {delta}; a gap is never negative")
    if share >= 1 and flipped >= 1:
        return NearTieSwap(delta)
    return NearTieSwap(delta, Ties(context=context, share=share, flipped=flipped, seed=seed))
