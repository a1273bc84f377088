# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernel that grows a best-first tree as a heap would: the best path so far, then its children, B times.

One warp has a sequence. Its frontier is a table of 64-bit keys, one row for each node that was taken (row 0: the
anchor) and one column for each candidate that may follow. Smaller is better: by log q in the upper 32 bits, then by
depth (16 bits), by the parent's turn (8) and by rank (8). No two keys are equal, so that the least one says which node
it is. Taken nodes are numbered by depth at the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

_NONE = tl.constexpr(0x7FFFFFFFFFFFFFFF)  # a key that is larger than any


@triton.jit
def _keys(scores, places):
    """Floats in falling order as growing integers, above the 32 bits of a place."""
    bits = scores.to(tl.int32, bitcast=True).to(tl.int64)
    order = tl.where(bits < 0, bits & 0x7FFFFFFF, -bits)
    return (order << 32) + places.to(tl.int64)


@triton.jit
def _score(key):
    """The float of a key."""
    order = key >> 32
    bits = tl.where(order < 0, -order, order + 0x80000000)
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def grow_kernel(  # noqa: PLR0913
    first, steps, ids, anchors, tokens, parents, depths, ancestors, first_stride, first_rank, steps_stride, steps_depth,
    steps_parent, steps_rank, ids_stride, ids_depth, ids_rank, anchors_stride, DEPTHS: tl.constexpr,
    CANDIDATES: tl.constexpr, WIDTH: tl.constexpr, DRAFTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Grid: sequences. ROWS is a power of two above DRAFTS, WIDTH one from CANDIDATES on."""
    sequence = tl.program_id(0).to(tl.int64)
    node, rank = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    is_rank = rank < CANDIDATES
    begin = tl.load(first + sequence * first_stride + rank * first_rank, mask=is_rank, other=0.0)
    keys = tl.where((node == 0)[:, None] & is_rank[None, :], _keys(begin, (1 << 16) + rank)[None, :], _NONE)
    depth = tl.zeros([ROWS], tl.int32)
    parent = tl.zeros([ROWS], tl.int32)  # the turn of the parent, from 1; 0: the anchor
    which = tl.zeros([ROWS], tl.int32)
    words = tl.zeros([ROWS], tl.int64)  # bit j: the node of turn j + 1 is this one or an ancestor
    for turn in range(DRAFTS):
        best = tl.min(tl.min(keys, 1), 0)
        place = (best & 0xFFFFFFFF).to(tl.int32)
        own_depth, own_parent, own_rank = place >> 16, (place >> 8) & 255, place & 255
        is_own, one = node == turn, tl.full([], 1, tl.int64)
        above = tl.sum(tl.where(node + 1 == own_parent, words, 0), 0)
        depth, parent = tl.where(is_own, own_depth, depth), tl.where(is_own, own_parent, parent)
        which, words = tl.where(is_own, own_rank, which), tl.where(is_own, above | (one << turn), words)
        keys = tl.where(keys == best, _NONE, keys)
        if own_depth < DEPTHS:
            after = steps + sequence * steps_stride + (own_depth - 1) * steps_depth + own_rank * steps_parent
            more = tl.load(after + rank * steps_rank, mask=is_rank, other=0.0)
            places = ((own_depth + 1) << 16) + ((turn + 1) << 8) + rank
            is_new = (node == turn + 1)[:, None] & is_rank[None, :]
            keys = tl.where(is_new, _keys(_score(best) + more, places)[None, :], keys)
    is_node = node < DRAFTS
    earlier = (depth[None, :] < depth[:, None]) | ((depth[None, :] == depth[:, None]) & (node[None, :] < node[:, None]))
    number = 1 + tl.sum((earlier & is_node[None, :]).to(tl.int32), 1)
    parent_number = tl.sum(tl.where(parent[:, None] == node[None, :] + 1, number[None, :], 0), 1)
    row = sequence * (DRAFTS + 1)
    found = ids + sequence * ids_stride + (depth - 1) * ids_depth + which * ids_rank
    tl.store(tokens + row + number, tl.load(found, mask=is_node, other=0), mask=is_node)
    tl.store(parents + row + number, parent_number.to(tl.int64), mask=is_node)
    tl.store(depths + row + number, depth.to(tl.int64), mask=is_node)
    tl.store(tokens + row, tl.load(anchors + sequence * anchors_stride))
    tl.store(parents + row, tl.full([], -1, tl.int64))
    tl.store(depths + row, tl.full([], 0, tl.int64))
    table = ancestors + row * (DRAFTS + 1)
    is_above = (words[:, None] >> node[None, :].to(tl.int64)) & 1
    inside = table + number[:, None] * (DRAFTS + 1) + number[None, :]
    tl.store(inside, is_above.to(tl.int8), mask=is_node[:, None] & is_node[None, :])
    tl.store(table + number * (DRAFTS + 1), tl.full([ROWS], 1, tl.int8), mask=is_node)
    tl.store(table + number, tl.full([ROWS], 0, tl.int8), mask=is_node)
    tl.store(table, tl.full([], 1, tl.int8))
