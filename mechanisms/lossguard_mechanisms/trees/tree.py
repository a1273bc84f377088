"""A tree of drafted tokens, the one value that policies make, and verification and acceptance take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from lossguard_mechanisms.trees.failures import no_tree, too_many_nodes

MAX_NODES: Final = 64
"""Of a tree with its anchor, so that a 64-bit word holds all ancestors of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """N nodes for each of B sequences, parents before children; node 0 is the anchor, the token chosen last.

    Siblings carry different tokens where acceptance matches tokens (``matching``); drawn siblings may be equal.
    """

    tokens: Tensor  # [B, N] int64
    parents: Tensor  # [B, N] int64; -1 for the anchor
    depths: Tensor  # [B, N] int64; 0 for the anchor
    ancestors: Tensor  # [B, N, N] bool: node j is node i or an ancestor of it
    is_chain: bool  # every node's parent is the one before it
    longest_path: int  # most nodes from the anchor on that a path can have

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.tokens.shape[1]

    def positions(self, past_lengths: Tensor) -> Tensor:
        """[B, N] absolute positions; the anchor's is its sequence's past length."""
        return past_lengths[:, None] + self.depths

    def ancestor_bits(self) -> Tensor:
        """[B, N] int64: bit j of node i says whether node j is i or an ancestor of it (bit 63 is the sign).

        Raises UsageError LG1901 for more than ``MAX_NODES`` nodes.
        """
        if self.num_nodes > MAX_NODES:
            raise too_many_nodes(self.num_nodes, MAX_NODES, "a word of ancestor bits holds")
        bits = torch.ones((), dtype=torch.int64, device=self.tokens.device) << torch.arange(
            self.num_nodes, device=self.tokens.device
        )
        return (self.ancestors * bits).sum(dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """What a verification accepted: for each sequence the nodes from the anchor on, and the tokens they give."""

    nodes: Tensor  # [B, L] int64, L the most nodes that a path can have; past the path's end any node
    num_nodes: Tensor  # [B] int64, at least 1: the anchor is always on the path
    emitted: Tensor  # [B, L] int64: the target's token after each node; the last valid one belongs to no node

    @property
    def last(self) -> Tensor:
        """[B] the last accepted node."""
        return self.nodes.gather(1, self.num_nodes[:, None] - 1)[:, 0]


def has_refused(tree: Tree, path: Path) -> Tensor:
    """[B] bool: the last accepted node had children, and none of them was accepted. At a leaf nothing is refused."""
    return (tree.parents == path.last[:, None]).any(dim=1)


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
        longest_path=size,
    )


def tree_of(tokens: Tensor, parents: Tensor, *, max_depth: int | None = None) -> Tree:
    """A tree from ``tokens`` and ``parents``, both [B, N], parents before children (``require_tree``).

    The device is asked nothing: every node steps up to its parent ``max_depth`` times (None: as often as any tree of N
    nodes may need).
    """
    batch, size = tokens.shape
    current = torch.arange(size, device=tokens.device).expand(batch, size)
    up = parents.clamp(min=0)
    ancestors = torch.zeros((batch, size, size), dtype=torch.bool, device=tokens.device)
    longest = min(size, size if max_depth is None else max_depth + 1)
    for _ in range(longest):
        ancestors.scatter_(2, current[:, :, None], value=True)
        current = up.gather(1, current)
    return Tree(
        tokens=tokens,
        parents=parents,
        depths=ancestors.sum(dim=2) - 1,
        ancestors=ancestors,
        is_chain=False,
        longest_path=longest,
    )


def require_tree(tokens: Tensor, parents: Tensor, *, max_nodes: int = MAX_NODES) -> None:
    """Check what somebody else made, which asks the device.

    Raises UsageError LG1901 (size), LG1902 (order, siblings).
    """
    batch, size = tokens.shape
    if parents.shape != tokens.shape or size == 0:
        raise no_tree(f"{tuple(parents.shape)} parents for {tuple(tokens.shape)} tokens")
    if size > max_nodes:
        raise too_many_nodes(size, max_nodes, "this verification takes")
    own = torch.arange(size, device=parents.device)
    if bool((parents[:, 0] != -1).any()):
        raise no_tree("the anchor has a parent")
    wrong = torch.nonzero((parents[:, 1:] < 0) | (parents[:, 1:] >= own[1:]))
    if len(wrong):
        row, node = wrong[0, 0], wrong[0, 1] + 1
        raise no_tree(f"node {int(node)} of sequence {int(row)} has parent {int(parents[row, node])}")
    key = torch.stack((parents, tokens), dim=-1)[:, 1:]
    for sequence in range(batch):
        if len(torch.unique(key[sequence], dim=0)) < size - 1:
            raise no_tree(f"two siblings of sequence {sequence} carry the same token")
