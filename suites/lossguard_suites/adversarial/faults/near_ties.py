"""F66: the lower-ranked token of every near-tie. Only a budget over all near-ties can see it."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LogitsProcessor

from lossguard.engines.extensions import BatchContext
from lossguard_suites.adversarial.faults.passes import rows_in_share

BFLOAT16_FRACTION_BITS = 7


class NearTieSwap(LogitsProcessor):
    """Exchanges the scores of the best two tokens wherever they are close."""

    def __init__(self, delta: float | None, rows: tuple[int, ...] | None = None) -> None:
        self._delta = delta
        self._rows = rows  # None: all

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        best = scores.argmax(dim=-1, keepdim=True)  # [B, 1]
        first = scores.gather(1, best)
        without_best = scores.scatter(1, best, float("-inf"))
        runner_up = without_best.argmax(dim=-1, keepdim=True)
        second = scores.gather(1, runner_up)
        limit = bfloat16_step(first) if self._delta is None else torch.full_like(first, self._delta)
        close = first - second <= limit  # [B, 1]
        if self._rows is not None:
            hit = torch.zeros_like(close)
            hit[list(self._rows)] = True
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
    context: BatchContext, *, delta: float | None = None, share: float = 1.0, seed: int = 0
) -> NearTieSwap:
    """F66. A near-tie is a top-2 gap of at most ``delta`` nats; without it, of one bfloat16 step.

    A ``share`` of the replies is hit. Raises ValueError for a negative ``delta``.
    """
    if delta is not None and delta < 0:
        raise ValueError(f"delta is {delta}; a gap is never negative")
    return NearTieSwap(delta, None if share >= 1 else rows_in_share(context, share, seed))
