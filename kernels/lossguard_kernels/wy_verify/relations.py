# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""What the nodes of a tree have to do with each other, whatever the state."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def whole_rows(rows, is_node, KEY: tl.constexpr, PADDED: tl.constexpr):
    """[TILE, PADDED]: queries or keys of all nodes."""
    inside = tl.arange(0, PADDED)
    return tl.load(rows + inside, mask=is_node[:, None] & (inside < KEY)[None, :], other=0.0)


@triton.jit
def lengths_of(rows, is_node, KEY: tl.constexpr, PADDED: tl.constexpr, EPSILON: tl.constexpr):
    """[TILE]: Euclidean lengths of rows."""
    x = whole_rows(rows, is_node, KEY, PADDED).to(tl.float32)
    return tl.sqrt(tl.sum(x * x, 1) + EPSILON)


@triton.jit
def keep_keys(key_rows, keys, units, unit, rows, is_node, shared, KEY_HEADS: tl.constexpr, KEY: tl.constexpr, PADDED: tl.constexpr):  # noqa: PLR0913, E501  # fmt: skip
    """Keys as they came, and 1 / |k|, for the commit."""
    inside = tl.arange(0, PADDED)
    k = whole_rows(key_rows, is_node, KEY, PADDED)
    copies = keys + (rows[:, None] * KEY_HEADS + shared) * KEY + inside
    tl.store(copies, k, mask=is_node[:, None] & (inside < KEY)[None, :])
    tl.store(units + rows * KEY_HEADS + shared, unit, mask=is_node)


@triton.jit
def relations(same, attention, unit, query_unit, rate, fade, seen, TILE: tl.constexpr):  # noqa: PLR0913
    """(T and weights of updates in outputs [TILE, TILE]; total log decay and its exp [TILE])."""
    nodes = tl.arange(0, TILE)
    is_ancestor = ((seen[:, None] >> nodes[None, :]) & 1) == 1
    total = tl.sum(tl.where(is_ancestor, fade[None, :], 0.0), 1)
    gap = tl.where(is_ancestor, total[:, None] - total[None, :], float("-inf"))
    decay = tl.exp(gap) * unit[None, :]  # masked before exp, which could overflow between siblings
    system = tl.where(nodes[:, None] == nodes[None, :], 0.0, (rate * unit)[:, None] * decay * same)
    return system, attention * query_unit[:, None] * decay, total, tl.exp(total)
