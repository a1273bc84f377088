"""The best candidates of a depth and the edges between those of neighbouring depths."""

from __future__ import annotations

import torch
from torch import Tensor

from lossguard_mechanisms.drafters.lattice import TOP_K


def best_candidates(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Ids and log-probabilities [..., K] of the likeliest tokens of ``log_probs`` [..., V], best first."""
    found = log_probs.topk(min(TOP_K, log_probs.shape[-1]), dim=-1)
    return found.indices, found.values


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
