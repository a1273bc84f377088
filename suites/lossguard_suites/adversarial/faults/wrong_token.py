"""F64: one wrong token in a few replies; the reply goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import LogitsProcessor

from lossguard.engines.extensions import BatchContext
from lossguard_suites.adversarial.faults.drawing import draw, is_hit


class WrongToken(LogitsProcessor):
    """Serves, at one length per hit row, a token of low rank that is far below the best."""

    def __init__(self, lengths: Mapping[int, int], *, rank: int, gap_nats: float, stop_ids: tuple[int, ...]) -> None:
        self._lengths = lengths  # row -> length of input_ids at which it is hit
        self._rank = rank
        self._gap_nats = gap_nats
        self._stop_ids = list(stop_ids)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        rows = [row for row, length in self._lengths.items() if length == input_ids.shape[1]]
        if not rows:
            return scores
        faulty = scores.clone()
        for row in rows:
            token = self._wrong(scores[row])
            faulty[row] = float("-inf")
            faulty[row, token] = 0.0
        return faulty

    def _wrong(self, scores: Any) -> int:
        """First id in rank order at or below ``rank`` and at least ``gap_nats`` under the best; never a stop id."""
        allowed = scores.clone()
        allowed[self._stop_ids] = float("-inf")
        values, ids = allowed.sort(descending=True, stable=True)
        far = (scores.max() - values >= self._gap_nats) & torch.isfinite(values)
        far[: self._rank] = False
        candidates = far.nonzero().flatten()
        if candidates.numel() == 0:
            raise ValueError(f"no token of rank {self._rank} or below is {self._gap_nats} nats under the best")
        return int(ids[candidates[0]])


def wrong_token(
    context: BatchContext,
    *,
    every: int = 20,
    seed: int = 0,
    rank: int = 50,
    gap_nats: float = 4.0,
    window: tuple[int, int] = (4, 40),
) -> WrongToken:
    """F64. Each hit reply draws its position from ``window`` (both ends included, below max_tokens)."""
    lengths = hit_lengths(context, every=every, seed=seed, window=window)
    return WrongToken(lengths, rank=rank, gap_nats=gap_nats, stop_ids=context.stop_ids)


def hit_lengths(context: BatchContext, *, every: int, seed: int, window: tuple[int, int]) -> dict[int, int]:
    """Row to the length of ``input_ids`` at which it is hit, once; rows that are not hit are left out."""
    earliest, latest = window
    lengths = {}
    for row, request in enumerate(context.requests):
        if is_hit(request, every=every, seed=seed):
            last = min(latest, request.sampling.max_tokens - 1)
            first = min(earliest, last)
            offset = draw(last - first + 1, "position", seed, request.id, request.repeat_id)
            lengths[row] = context.prompt_length + first + offset
    return lengths
