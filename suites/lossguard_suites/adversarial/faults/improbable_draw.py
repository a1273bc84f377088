"""A few tokens of sampled replies come from the far tail of their distribution: no mean moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import LogitsProcessor

from lossguard.engines.extensions import BatchContext
from lossguard_suites.adversarial.faults.wrong_token import hit_lengths


class ImprobableDraw(LogitsProcessor):
    """Serves, at one length per hit row, a token so far down that exact draws hardly ever give it or one below it."""

    def __init__(self, lengths: Mapping[int, int], temperatures: Mapping[int, float], *, tail: float) -> None:
        self._lengths = lengths  # row -> length of input_ids at which it is hit
        self._temperatures = temperatures
        self._tail = tail

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        rows = [row for row, length in self._lengths.items() if length == input_ids.shape[1]]
        if not rows:
            return scores
        faulty = scores.clone()
        for row in rows:
            token = self._far_down(scores[row].float() / self._temperatures[row])
            faulty[row] = float("-inf")
            faulty[row, token] = 0.0
        return faulty

    def _far_down(self, scaled: Any) -> int:
        """The likeliest token whose own probability, and all below it, come to at most the tail."""
        values, ids = scaled.sort(stable=True)  # the least likely first
        below = values.double().softmax(dim=-1).cumsum(dim=-1)
        inside = (below <= self._tail).nonzero().flatten()
        if inside.numel() == 0:
            raise ValueError(f"no token has a tail of at most {self._tail}")
        return int(ids[inside[-1]])


def improbable_draw(
    context: BatchContext,
    *,
    every: int = 20,
    seed: int = 0,
    tail: float = 1e-6,
    window: tuple[int, int] = (4, 40),
) -> ImprobableDraw:
    """O10. One token in one sampled reply of ``every``; greedy replies are served right."""
    lengths = hit_lengths(context, every=every, seed=seed, window=window)
    sampled = {
        row: request.sampling.temperature
        for row, request in enumerate(context.requests)
        if row in lengths and not request.sampling.is_greedy
    }
    return ImprobableDraw({row: lengths[row] for row in sampled}, sampled, tail=tail)
