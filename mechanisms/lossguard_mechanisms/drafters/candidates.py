"""The best candidates of a depth and the edges between those of neighbouring depths."""

from __future__ import annotations

import torch
from torch import Tensor

from lossguard_mechanisms.drafters.lattice import TOP_K

_STRETCH, _LARGE_VOCABULARY = 64, 32_768


def best_candidates(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Ids and log-probabilities [..., K] of the likeliest tokens of ``log_probs`` [..., V], best first.

    Of a large vocabulary the K stretches with the largest maxima come first: they hold the K best tokens, and all else
    is read once.
    """
    vocab_size = log_probs.shape[-1]
    if vocab_size < _LARGE_VOCABULARY or vocab_size % _STRETCH:
        found = log_probs.topk(min(TOP_K, vocab_size), dim=-1)
        return found.indices, found.values
    stretches = log_probs.unflatten(-1, (-1, _STRETCH))
    chosen = stretches.amax(-1).topk(TOP_K, dim=-1).indices[..., None]  # [..., K, 1]
    inside = stretches.gather(-2, chosen.expand(*chosen.shape[:-1], _STRETCH)).flatten(-2)
    ids = (chosen * _STRETCH + torch.arange(_STRETCH, device=chosen.device)).flatten(-2)
    found = inside.topk(TOP_K, dim=-1)
    return ids.gather(-1, found.indices), found.values


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-probabilities [..., V] of ``logits``, in float32 (float64 for float64)."""
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def predecessors(anchors: Tensor, ids: Tensor) -> Tensor:
    """[B, D, K] what may stand before each depth: the anchor K times, then the candidates of the depth before."""
    first = anchors[:, None, None].expand(-1, 1, ids.shape[-1])
    return torch.cat((first, ids[:, :-1]), dim=1)


def walk(ids: Tensor, edges: Tensor) -> Tensor:
    """[B, D] the greedy walk: at each depth the best candidate after the one taken before."""
    row = torch.zeros(ids.shape[0], 1, dtype=torch.int64, device=ids.device)
    taken = []
    for depth in range(ids.shape[1]):
        scores = edges[:, depth].gather(1, row[..., None].expand(-1, 1, edges.shape[-1]))[:, 0]
        row = scores.argmax(-1, keepdim=True)
        taken.append(ids[:, depth].gather(1, row))
    return torch.cat(taken, dim=1)
