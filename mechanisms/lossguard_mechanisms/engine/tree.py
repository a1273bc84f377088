"""Drafted trees as values. A chain is the tree that exists now; nothing else here knows that."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """N nodes for each of B sequences, parents before children; node 0 is the anchor, the token chosen last."""

    tokens: Tensor  # [B, N] int64
    parents: Tensor  # [B, N] int64; -1 for the anchor
    depths: Tensor  # [B, N] int64; 0 for the anchor
    ancestors: Tensor  # [B, N, N] bool: node j is node i or an ancestor of it
    is_chain: bool  # every node's parent is the one before it

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.tokens.shape[1]

    def positions(self, past_lengths: Tensor) -> Tensor:
        """[B, N] absolute positions; the anchor's is its sequence's past length."""
        return past_lengths[:, None] + self.depths


def chain(anchors: Tensor, drafts: Tensor) -> Tree:
    """The tree without branches: ``anchors`` [B], then ``drafts`` [B, D] (D may be 0)."""
    tokens = torch.cat((anchors[:, None], drafts), dim=1)
    batch, size = tokens.shape
    steps = torch.arange(size, device=tokens.device)
    return Tree(
        tokens=tokens,
        parents=(steps - 1).expand(batch, size),
        depths=steps.expand(batch, size),
        ancestors=(steps[:, None] >= steps).expand(batch, size, size),
        is_chain=True,
    )


def tree_of(tokens: Tensor, parents: Tensor) -> Tree:
    """A tree from ``tokens`` and ``parents``, both [B, N], parents before children."""
    batch, size = tokens.shape
    depths = torch.zeros_like(parents)
    ancestors = torch.eye(size, dtype=torch.bool, device=tokens.device).repeat(batch, 1, 1)
    rows = torch.arange(batch, device=tokens.device)
    for node in range(1, size):
        parent = parents[:, node]
        depths[:, node] = depths[rows, parent] + 1
        ancestors[:, node] |= ancestors[rows, parent]
    return Tree(tokens=tokens, parents=parents, depths=depths, ancestors=ancestors, is_chain=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """What a verification accepted: for each sequence the nodes from the anchor on, and the tokens they give."""

    nodes: Tensor  # [B, L] int64, L the most nodes that a path can have; past the path's end any node
    num_nodes: Tensor  # [B] int64, at least 1: the anchor is always on the path
    emitted: Tensor  # [B, L] int64: the target's token after each node; the last valid one belongs to no node
