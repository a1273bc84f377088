"""Inputs of a delta layer for the nodes of a forest, and what a verification keeps of every node."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard_kernels.forests.failures import no_room, too_many_nodes
from lossguard_kernels.forests.forest import MAX_NODES, Forest

NORM_EPSILON = 1e-6
"""Inside the square root of the lengths of queries and keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRows:
    """One row per node. Queries and keys are neither normalised nor scaled yet: the kernel does that in float32.

    Rows may lie apart; within a row heads and channels lie together.
    """

    query: Tensor  # [rows, key heads, key_dim]
    key: Tensor  # [rows, key heads, key_dim]
    value: Tensor  # [rows, value heads, value_dim]
    log_decay: Tensor  # [rows, value heads] float32, at most 0
    beta: Tensor  # [rows, value heads]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stash:
    """Of every node of every delta layer, what a commit needs; as one layer's (``layer``) without the first dimension.

    u is a node's update of the state (docs/tree-kernels.md), G the sum of log decays on its path.
    """

    keys: Tensor  # [layers, rows, key heads, key_dim]: as they came
    units: Tensor  # [layers, rows, key heads] float32: 1 / length of each key
    updates: Tensor  # [layers, rows, value heads, value_dim] float32: u
    totals: Tensor  # [layers, rows, value heads] float32: G

    def layer(self, index: int) -> Stash:
        """Views of one layer."""
        return Stash(
            keys=self.keys[index], units=self.units[index], updates=self.updates[index], totals=self.totals[index]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StashShape:
    """Sizes of a stash; ``dtype`` is the keys'."""

    layers: int
    rows: int
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of all its tensors."""
        keys = self.key_heads * (self.key_dim * self.dtype.itemsize + 4)
        return self.layers * self.rows * (keys + 4 * self.heads * (self.value_dim + 1))


def empty_stash(shape: StashShape, device: torch.device | str) -> Stash:
    """A stash that nothing is written in yet."""
    leading = (shape.layers, shape.rows)
    return Stash(
        keys=torch.empty((*leading, shape.key_heads, shape.key_dim), dtype=shape.dtype, device=device),
        units=torch.empty((*leading, shape.key_heads), dtype=torch.float32, device=device),
        updates=torch.empty((*leading, shape.heads, shape.value_dim), dtype=torch.float32, device=device),
        totals=torch.empty((*leading, shape.heads), dtype=torch.float32, device=device),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Accepted rows that the states do not hold yet, ``capacity`` for each slot: a stash of chains.

    The state of a slot is exp(G_p) S + sum over its rows of exp(G_p - G_j) k_j u_j^T, p its last row.
    """

    stash: Stash  # rows: slots * capacity
    counts: Tensor  # [slots] int64
    bits: Tensor  # [slots * capacity] int64: of chains
    capacity: int

    def forest(self, slots: Tensor) -> Forest:
        """The chains of ``slots`` [R]."""
        return Forest(firsts=slots * self.capacity, counts=self.counts[slots], bits=self.bits, most_nodes=self.capacity)

    def require_room(self, most_rows: int) -> None:
        """Raises UsageError LG1912 where a slot may come to hold ``most_rows`` and cannot."""
        if most_rows > self.capacity:
            raise no_room(most_rows, self.capacity)


def empty_pending(shape: StashShape, num_slots: int, capacity: int, device: torch.device | str) -> Pending:
    """No rows yet for any slot; ``shape.rows`` is not read. Raises UsageError LG1901 for a capacity over 64."""
    if not 0 < capacity <= MAX_NODES:
        raise too_many_nodes(capacity, MAX_NODES, "a buffer of deferred rows holds")
    sizes = StashShape(
        layers=shape.layers,
        rows=num_slots * capacity,
        key_heads=shape.key_heads,
        heads=shape.heads,
        key_dim=shape.key_dim,
        value_dim=shape.value_dim,
        dtype=shape.dtype,
    )
    ones = torch.ones(capacity, dtype=torch.int64, device=device)
    chain = (ones << torch.arange(capacity, device=device)).cumsum(0)
    return Pending(
        stash=empty_stash(sizes, device),
        counts=torch.zeros(num_slots, dtype=torch.int64, device=device),
        bits=chain.repeat(num_slots),
        capacity=capacity,
    )
