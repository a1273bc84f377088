"""The one value that kernels over trees take: where each request's nodes lie, and who is whose ancestor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from lossguard_kernels.forests.failures import no_tree, too_many_nodes, wrong_tensors

MAX_NODES: Final = 64
"""Of one tree: a 64-bit word holds all ancestors of a node (the last bit is the sign)."""

_LEAST_TILE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """Trees of R requests, parents before children. Nodes count from their tree's first, rows over all trees.

    A tree may have several roots: they all follow the committed state. A request may have no node.
    """

    firsts: Tensor  # [R] int64: the row of each tree's first node
    counts: Tensor  # [R] int64: nodes of each tree
    bits: Tensor  # [rows] int64: bit j says that node j of the same tree is this node or an ancestor of it
    most_nodes: int  # of any tree, which the host knows: tiles are sized by it

    @property
    def num_trees(self) -> int:
        """R."""
        return self.firsts.shape[0]

    @property
    def tile(self) -> int:
        """Rows of a tile that holds any of the trees: 16, 32 or 64."""
        return max(_LEAST_TILE, 1 << (self.most_nodes - 1).bit_length())


def forest_of(parents: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Forest:
    """The forest whose trees have these parents (-1: a root). Raises UsageError LG1901 (size), LG1902 (order)."""
    words = [ancestor_words(tree) for tree in parents]
    counts = [len(tree) for tree in parents]
    firsts = [sum(counts[:request]) for request in range(len(counts))]
    flat = [word for tree in words for word in tree]
    as_tensor = {"dtype": torch.int64, "device": device}
    return Forest(
        firsts=torch.tensor(firsts, **as_tensor),  # type: ignore[arg-type]
        counts=torch.tensor(counts, **as_tensor),  # type: ignore[arg-type]
        bits=torch.tensor(flat, **as_tensor),  # type: ignore[arg-type]
        most_nodes=max(1, *counts),
    )


def forest_of_batch(bits: Tensor) -> Forest:
    """R trees of N nodes each, from ``bits`` [R, N] int64; the device is asked nothing. Raises UsageError LG1901."""
    requests, nodes = bits.shape
    if not 0 < nodes <= MAX_NODES:
        raise too_many_nodes(nodes, MAX_NODES, "a word of ancestor bits holds")
    if bits.dtype != torch.int64:
        raise wrong_tensors(f"ancestor bits are {bits.dtype}, not int64")
    return Forest(
        firsts=torch.arange(0, requests * nodes, nodes, device=bits.device),
        counts=torch.full((requests,), nodes, dtype=torch.int64, device=bits.device),
        bits=bits.contiguous().flatten(),  # kernels know no strides; of one node each, flatten alone keeps a view
        most_nodes=nodes,
    )


def ancestor_words(parents: Sequence[int]) -> list[int]:
    """Signed 64-bit words of ancestors and self, in the nodes' order. Raises UsageError LG1901, LG1902."""
    if len(parents) > MAX_NODES:
        raise too_many_nodes(len(parents), MAX_NODES, "a word of ancestor bits holds")
    words: list[int] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise no_tree(f"node {node} has parent {parent}")
        words.append((words[parent] if parent >= 0 else 0) | 1 << node)
    return [word - (1 << 64) if word >> 63 else word for word in words]
