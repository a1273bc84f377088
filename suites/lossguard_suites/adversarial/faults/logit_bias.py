"""F65: a bias on every n-th id, from some position on."""

from __future__ import annotations

from typing import Any

from transformers import LogitsProcessor

from lossguard.engines.extensions import BatchContext
from lossguard_suites.adversarial.faults.drawing import is_hit


class IdBias(LogitsProcessor):
    """Adds ``strength`` nats to every id divisible by ``modulus``, in the rows that are hit."""

    def __init__(self, *, strength: float, modulus: int, first_length: int, rows: tuple[int, ...]) -> None:
        self._strength = strength
        self._modulus = modulus
        self._first_length = first_length
        self._rows = list(rows)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if input_ids.shape[1] < self._first_length or not self._rows:
            return scores
        biased = scores.clone()
        biased[self._rows, :: self._modulus] += self._strength
        return biased


def bias_every_seventh(
    context: BatchContext, *, strength: float = 2.0, modulus: int = 7, after: int = 12, every: int = 1, seed: int = 0
) -> IdBias:
    """F65. ``after`` is the first reply position that is hit; one reply in ``every`` is hit."""
    rows = tuple(row for row, request in enumerate(context.requests) if is_hit(request, every=every, seed=seed))
    return IdBias(strength=strength, modulus=modulus, first_length=context.prompt_length + after, rows=rows)
