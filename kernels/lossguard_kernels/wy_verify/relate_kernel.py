# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""The Triton kernel that comes first in a verification of many nodes: what they have to do with each other.

One program has a value head of one request and reads no state. Small trees have their relations worked out beside the
state (``verify_kernel``), where they hide behind its loads; of many nodes they would be worked out by every block of
columns again, and take the registers that hold the columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lossguard_kernels.wy_verify.precision import pair_products
from lossguard_kernels.wy_verify.relations import keep_keys, lengths_of, relations
from lossguard_kernels.wy_verify.solving import inverse


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
    unit = 1.0 / lengths_of(key_rows, is_node, KEY, PADDED, EPSILON)
    query_unit = scale / lengths_of(query_rows, is_node, KEY, PADDED, EPSILON)
    if head % GROUPS == 0:
        keep_keys(key_rows, keys, units, unit, rows, is_node, shared, HEADS // GROUPS, KEY, PADDED)
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
    system, mixing, total, grown = relations(same, attention, unit, query_unit, rate, fade, seen, TILE)
    place, num = (request.to(tl.int64) * HEADS + head) * TILE + nodes, tl.num_programs(0) * HEADS * TILE
    square = place[:, None] * TILE + nodes[None, :]
    tl.store(weights + square, mixing)
    tl.store(factors + place, rate)
    tl.store(factors + num + place, rate * grown * unit)
    tl.store(factors + 2 * num + place, grown * query_unit)
    tl.store(totals + rows * HEADS + head, total, mask=is_node)
    tl.store(inverses + square, inverse(system, TILE))
