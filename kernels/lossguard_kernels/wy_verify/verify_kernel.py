# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""The Triton kernel of a verification: one program has the columns of one value head's state of one request.

It reads its part of the state once, [PART, BLOCK] at a time, for all nodes, and writes none of it. What nodes have to
do with each other is worked out beside it, or is there already (``relate_kernel``). Queries and keys are multiplied as
they come; their lengths are divided out afterwards.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lossguard_kernels.wy_verify.precision import in_two_parts, mixed_products, pair_products, products
from lossguard_kernels.wy_verify.relations import keep_keys, lengths_of, relations
from lossguard_kernels.wy_verify.solving import inverse


@triton.jit
def _add_pending(  # noqa: PLR0913
    recalled, asked, query_rows, key_rows, is_node, first, count, head, columns, old_keys, old_units, old_updates,
    old_totals, TILE: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr, KEY: tl.constexpr, PART: tl.constexpr,
    VALUE: tl.constexpr, PENDING: tl.constexpr, WIDE: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    """What rows that the state does not hold yet add: K S becomes exp(G_p) K S_0 + (K K_p^T * w) U_p."""
    KEY_HEADS: tl.constexpr = HEADS // GROUPS
    shared = head // GROUPS
    faded = tl.load(old_totals + (first + count - 1) * HEADS + head, mask=count > 0, other=0.0)
    recalled *= tl.exp(faded)
    asked *= tl.exp(faded)
    for begin in range(0, PENDING, 16):
        old = begin + tl.arange(0, 16)
        is_old = old < count
        row = first + old
        unit = tl.load(old_units + row * KEY_HEADS + shared, mask=is_old, other=0.0)
        total = tl.load(old_totals + row * HEADS + head, mask=is_old, other=float("inf"))
        weight = (unit * tl.exp(faded - total))[None, :]
        near_keys, near_queries = tl.zeros((TILE, 16), tl.float32), tl.zeros((TILE, 16), tl.float32)
        for start in range(0, KEY, PART):
            wide = start + tl.arange(0, PART)
            place = (row * KEY_HEADS + shared)[None, :] * KEY + wide[:, None]
            turned = tl.load(old_keys + place, mask=is_old[None, :], other=0.0)
            k = tl.load(key_rows + wide, mask=is_node[:, None], other=0.0)
            q = tl.load(query_rows + wide, mask=is_node[:, None], other=0.0)
            near_keys = pair_products(k, turned, near_keys, WIDE, CAST)
            near_queries = pair_products(q, turned, near_queries, WIDE, CAST)
        update = tl.load(old_updates + (row * HEADS + head)[:, None] * VALUE + columns, mask=is_old[:, None], other=0.0)
        recalled += products(near_keys * weight, update)
        asked += products(near_queries * weight, update)
    return recalled, asked


@triton.jit
def verify_kernel(  # noqa: PLR0913
    query, key, value, log_decay, beta, firsts, counts, bits, states, slots, inverses, weights, factors, output, keys,
    units, updates, totals, old_firsts, old_counts, old_keys, old_units, old_updates, old_totals, query_stride,
    key_stride, value_stride, scale, TILE: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr, KEY: tl.constexpr,
    PADDED: tl.constexpr, PART: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr, PENDING: tl.constexpr,
    EPSILON: tl.constexpr, IS_RELATED: tl.constexpr, WIDE: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    """Grid: requests, value heads, blocks of columns."""
    request, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    shared, slot = head // GROUPS, tl.load(slots + request).to(tl.int64)
    first, count = tl.load(firsts + request), tl.load(counts + request)
    nodes, columns = tl.arange(0, TILE), block * BLOCK + tl.arange(0, BLOCK)
    is_node, rows = nodes < count, first + nodes
    query_rows = query + rows[:, None] * query_stride + shared * KEY
    key_rows = key + rows[:, None] * key_stride + shared * KEY
    key_columns = key + rows[None, :] * key_stride + shared * KEY
    state = states + (slot * HEADS + head) * KEY * VALUE + columns
    same, attention = tl.zeros((TILE, TILE), tl.float32), tl.zeros((TILE, TILE), tl.float32)
    recalled, asked = tl.zeros((TILE, BLOCK), tl.float32), tl.zeros((TILE, BLOCK), tl.float32)
    for begin in range(0, KEY, PART):
        wide = begin + tl.arange(0, PART)
        s = tl.load(state + wide[:, None] * VALUE)
        q = tl.load(query_rows + wide, mask=is_node[:, None], other=0.0)
        k = tl.load(key_rows + wide, mask=is_node[:, None], other=0.0)
        if not IS_RELATED:
            turned = tl.load(key_columns + wide[:, None], mask=is_node[None, :], other=0.0)
            same = pair_products(k, turned, same, WIDE, CAST)
            attention = pair_products(q, turned, attention, WIDE, CAST)
        if TILE <= 32:
            recalled = in_two_parts(k, s, recalled, WIDE, CAST)
            asked = in_two_parts(q, s, asked, WIDE, CAST)
        else:  # products of four warps, whose float32 operands would have to be turned first
            recalled = mixed_products(k, s, recalled, WIDE, CAST)
            asked = mixed_products(q, s, asked, WIDE, CAST)
    if PENDING > 0:
        recalled, asked = _add_pending(
            recalled, asked, query_rows, key_rows, is_node, tl.load(old_firsts + request),
            tl.load(old_counts + request), head, columns, old_keys, old_units, old_updates, old_totals, TILE, HEADS,
            GROUPS, KEY, PART, VALUE, PENDING, WIDE, CAST,
        )  # fmt: skip
    if IS_RELATED:
        place, num = (request.to(tl.int64) * HEADS + head) * TILE + nodes, tl.num_programs(0) * HEADS * TILE
        square = place[:, None] * TILE + nodes[None, :]
        solving, mixing = tl.load(inverses + square), tl.load(weights + square)
        of_values, of_recalled = tl.load(factors + place), tl.load(factors + num + place)
        of_asked = tl.load(factors + 2 * num + place)
    else:
        unit = 1.0 / lengths_of(key_rows, is_node, KEY, PADDED, EPSILON)
        query_unit = scale / lengths_of(query_rows, is_node, KEY, PADDED, EPSILON)
        fade = tl.load(log_decay + rows * HEADS + head, mask=is_node, other=0.0)
        of_values = tl.load(beta + rows * HEADS + head, mask=is_node, other=0.0).to(tl.float32)
        seen = tl.load(bits + rows, mask=is_node, other=0)
        system, mixing, total, grown = relations(same, attention, unit, query_unit, of_values, fade, seen, TILE)
        solving, of_recalled, of_asked = inverse(system, TILE), of_values * grown * unit, grown * query_unit
        tl.store(totals + rows * HEADS + head, total, mask=is_node & (block == 0))
        if (block == 0) & (head % GROUPS == 0):
            keep_keys(key_rows, keys, units, unit, rows, is_node, shared, HEADS // GROUPS, KEY, PADDED)
    v = tl.load(value + rows[:, None] * value_stride + head * VALUE + columns, mask=is_node[:, None], other=0.0)
    solved = products(solving, of_values[:, None] * v.to(tl.float32) - of_recalled[:, None] * recalled)
    mixed = of_asked[:, None] * asked + products(mixing, solved)
    out = (rows * HEADS + head)[:, None] * VALUE + columns
    tl.store(output + out, mixed.to(output.dtype.element_ty), mask=is_node[:, None])
    tl.store(updates + out, solved, mask=is_node[:, None])
