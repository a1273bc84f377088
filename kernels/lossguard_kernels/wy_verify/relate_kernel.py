# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""The Triton kernel that comes first in a verification: what the nodes of a tree have to do with each other.

One program has a value head of one request. It reads no state: (I + T)^-1, the weights of updates in outputs and the
factors of rows are worked out once, and not by every block of the state's columns again.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lossguard_kernels.wy_verify.precision import pair_products
from lossguard_kernels.wy_verify.solving import inverse


@triton.jit
def _whole_rows(rows, is_node, KEY: tl.constexpr, PADDED: tl.constexpr):
    inside = tl.arange(0, PADDED)
    return tl.load(rows + inside, mask=is_node[:, None] & (inside < KEY)[None, :], other=0.0)


@triton.jit
def relate_kernel(  # noqa: PLR0913
    query, key, log_decay, beta, firsts, counts, bits, keys, units, totals, inverses, weights, factors, query_stride,
    key_stride, scale, TILE: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr, KEY: tl.constexpr,
    PADDED: tl.constexpr, PART: tl.constexpr, EPSILON: tl.constexpr, WIDE: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    """Grid: requests, value heads. ``factors``: of values, of what the state recalls, of what it is asked."""
    request, head = tl.program_id(0), tl.program_id(1)
    shared = head // GROUPS
    first, count = tl.load(firsts + request), tl.load(counts + request)
    nodes = tl.arange(0, TILE)
    is_node, rows = nodes < count, first + nodes
    query_rows = query + rows[:, None] * query_stride + shared * KEY
    key_rows = key + rows[:, None] * key_stride + shared * KEY
    key_columns = key + rows[None, :] * key_stride + shared * KEY
    q = _whole_rows(query_rows, is_node, KEY, PADDED).to(tl.float32)
    k = _whole_rows(key_rows, is_node, KEY, PADDED)
    query_unit = scale / tl.sqrt(tl.sum(q * q, 1) + EPSILON)
    unit = 1.0 / tl.sqrt(tl.sum(k.to(tl.float32) * k.to(tl.float32), 1) + EPSILON)
    if head % GROUPS == 0:
        inside = tl.arange(0, PADDED)
        copies = keys + (rows[:, None] * (HEADS // GROUPS) + shared) * KEY + inside
        tl.store(copies, k, mask=is_node[:, None] & (inside < KEY)[None, :])
        tl.store(units + rows * (HEADS // GROUPS) + shared, unit, mask=is_node)
    same, attention = tl.zeros((TILE, TILE), tl.float32), tl.zeros((TILE, TILE), tl.float32)
    for begin in range(0, KEY, PART):
        wide = begin + tl.arange(0, PART)
        part = tl.load(key_rows + wide, mask=is_node[:, None], other=0.0)
        asking = tl.load(query_rows + wide, mask=is_node[:, None], other=0.0)
        turned = tl.load(key_columns + wide[:, None], mask=is_node[None, :], other=0.0)
        same = pair_products(part, turned, same, WIDE, CAST)
        attention = pair_products(asking, turned, attention, WIDE, CAST)
    fade = tl.load(log_decay + rows * HEADS + head, mask=is_node, other=0.0)
    rate = tl.load(beta + rows * HEADS + head, mask=is_node, other=0.0).to(tl.float32)
    seen = tl.load(bits + rows, mask=is_node, other=0)
    is_ancestor = ((seen[:, None] >> nodes[None, :]) & 1) == 1
    total = tl.sum(tl.where(is_ancestor, fade[None, :], 0.0), 1)
    gap = tl.where(is_ancestor, total[:, None] - total[None, :], float("-inf"))
    decay = tl.exp(gap) * unit[None, :]  # masked before exp, which could overflow between siblings
    system = tl.where(nodes[:, None] == nodes[None, :], 0.0, (rate * unit)[:, None] * decay * same)
    place = (request * HEADS + head) * TILE + nodes
    square = place[:, None] * TILE + nodes[None, :]
    tl.store(weights + square, attention * query_unit[:, None] * decay)
    tl.store(inverses + square, inverse(system, TILE))
    grown, num = tl.exp(total), tl.num_programs(0) * HEADS * TILE
    tl.store(factors + place, rate)
    tl.store(factors + num + place, rate * grown * unit)
    tl.store(factors + 2 * num + place, grown * query_unit)
    tl.store(totals + rows * HEADS + head, total, mask=is_node)
