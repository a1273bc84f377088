"""A control: noise of the size of a rounding, as kernels of another width have it."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LogitsProcessor

from lossguard.engines.extensions import BatchContext
from lossguard_suites.adversarial.faults.drawing import draw
from lossguard_suites.adversarial.faults.near_ties import bfloat16_step


class LogitNoise(LogitsProcessor):
    """Adds to every logit a uniform number of at most ``steps`` bfloat16 steps of the best one."""

    def __init__(self, *, steps: float, start: int) -> None:
        self._steps = steps
        self._start = start
        self._generator: torch.Generator | None = None

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if self._steps == 0:
            return scores
        if self._generator is None:
            self._generator = torch.Generator(device=scores.device).manual_seed(self._start)
        drawn = torch.rand(scores.shape, generator=self._generator, device=scores.device, dtype=scores.dtype)
        size = bfloat16_step(scores.max(dim=-1, keepdim=True).values) * self._steps
        return scores + (2 * drawn - 1) * size


def width_noise(context: BatchContext, *, steps: float = 0.5, seed: int = 0) -> LogitNoise:
    """F59. Half a bfloat16 step: what rounding each logit differently could change."""
    return LogitNoise(steps=steps, start=draw(1 << 62, "noise", seed, context.requests[0].id))
