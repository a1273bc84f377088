# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernels that write keys and values of nodes into pages, and compact the nodes of an accepted path there."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def write_kernel(  # noqa: PLR0913
    key, value, keys, values, table, past_lengths, firsts, counts, key_stride, value_stride, num_pages,
    HEADS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Grid: requests, nodes, key heads."""
    request, node, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if node < tl.load(counts + request):
        inside = tl.arange(0, PADDED)
        position = tl.load(past_lengths + request) + node
        page = tl.load(table + request * num_pages + position // PAGE)
        place = ((page * HEADS + head) * PAGE + position % PAGE) * DIM + inside
        row = tl.load(firsts + request) + node
        k = tl.load(key + row * key_stride + head * DIM + inside, mask=inside < DIM)
        v = tl.load(value + row * value_stride + head * DIM + inside, mask=inside < DIM)
        tl.store(keys + place, k, mask=inside < DIM)
        tl.store(values + place, v, mask=inside < DIM)


@triton.jit
def _move(pool, source, target, is_moved, inside, DIM: tl.constexpr):
    is_inside = is_moved[:, None] & (inside < DIM)[None, :]
    x = tl.load(pool + source[:, None] * DIM + inside, mask=is_inside, other=0.0)
    tl.debug_barrier()  # all is read before any of it changes
    tl.store(pool + target[:, None] * DIM + inside, x, mask=is_inside)


@triton.jit
def compact_kernel(  # noqa: PLR0913
    keys, values, table, past_lengths, firsts, bits, last, num_requests, num_pages, pool_pages, TILE: tl.constexpr,
    HEADS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Grid: layers * requests, key heads. The i-th node of the path moves to position past + i; -1 moves nothing."""
    request, head = tl.program_id(0) % num_requests, tl.program_id(1)
    layer = (tl.program_id(0) // num_requests).to(tl.int64)
    end_node = tl.load(last + request)
    if end_node >= 0:
        nodes, inside = tl.arange(0, TILE), tl.arange(0, PADDED)
        path = tl.load(bits + tl.load(firsts + request) + end_node)
        is_kept = ((path >> nodes) & 1) == 1
        before = tl.sum(tl.where(is_kept[None, :] & (nodes[None, :] < nodes[:, None]), 1, 0), 1)
        is_moved = is_kept & (before != nodes)
        past, own_table = tl.load(past_lengths + request), table + request * num_pages
        old, new = past + nodes, past + before
        page = tl.load(own_table + old // PAGE, mask=is_moved, other=0) + layer * pool_pages
        source = (page * HEADS + head) * PAGE + old % PAGE
        page = tl.load(own_table + new // PAGE, mask=is_moved, other=0) + layer * pool_pages
        target = (page * HEADS + head) * PAGE + new % PAGE
        _move(keys, source, target, is_moved, inside, DIM)
        _move(values, source, target, is_moved, inside, DIM)
