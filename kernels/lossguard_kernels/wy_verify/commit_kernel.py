# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernels of a commit, each one launch for all layers: into the states, or into rows that wait to be folded.

S <- exp(G_m) S + sum over j on the path to m of exp(G_m - G_j) k_j u_j^T
"""

from __future__ import annotations

import triton
import triton.language as tl

from lossguard_kernels.wy_verify.precision import mixed_products


@triton.jit
def commit_kernel(  # noqa: PLR0913
    keys, units, updates, totals, firsts, counts, bits, last, states, slots, num_requests, num_rows, num_slots,
    TILE: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr, KEY: tl.constexpr, PART: tl.constexpr,
    VALUE: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    """Grid: layers * requests, value heads, blocks of columns. A last node of -1 leaves the state as it is."""
    request, head, block = tl.program_id(0) % num_requests, tl.program_id(1), tl.program_id(2)
    layer = (tl.program_id(0) // num_requests).to(tl.int64)  # offsets pass 2^31
    end_node = tl.load(last + request)
    if end_node >= 0:
        KEY_HEADS: tl.constexpr = HEADS // GROUPS
        shared, slot = head // GROUPS, tl.load(slots + request).to(tl.int64)
        first, count = tl.load(firsts + request), tl.load(counts + request)
        nodes, columns = tl.arange(0, TILE), block * BLOCK + tl.arange(0, BLOCK)
        path = tl.load(bits + first + end_node)
        is_kept = (((path >> nodes) & 1) == 1) & (nodes < count)
        rows = layer * num_rows + first + nodes
        total = tl.load(totals + rows * HEADS + head, mask=is_kept, other=float("inf"))
        end = tl.load(totals + (layer * num_rows + first + end_node) * HEADS + head)
        unit = tl.load(units + rows * KEY_HEADS + shared, mask=is_kept, other=0.0)
        u = tl.load(updates + (rows * HEADS + head)[:, None] * VALUE + columns, mask=is_kept[:, None], other=0.0)
        weighted = u * (unit * tl.exp(end - total))[:, None]
        state = states + ((layer * num_slots + slot) * HEADS + head) * KEY * VALUE + columns
        for begin in range(0, KEY, PART):
            wide = begin + tl.arange(0, PART)
            place = (rows * KEY_HEADS + shared)[None, :] * KEY + wide[:, None]
            k = tl.load(keys + place, mask=is_kept[None, :], other=0.0)  # [PART, TILE]
            s = tl.load(state + wide[:, None] * VALUE) * tl.exp(end)
            added = mixed_products(k, weighted, tl.zeros((PART, BLOCK), tl.float32), WIDE, CAST)
            tl.store(state + wide[:, None] * VALUE, s + added)  # rounded to nearest: see precision


@triton.jit
def _copy(source, target, row, to_row, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    for begin in range(0, WIDTH, CHUNK):
        inside = begin + tl.arange(0, CHUNK)
        x = tl.load(source + row * WIDTH + inside, mask=inside < WIDTH, other=0.0)
        tl.store(target + to_row * WIDTH + inside, x, mask=inside < WIDTH)


@triton.jit
def defer_kernel(  # noqa: PLR0913
    keys, units, updates, totals, firsts, bits, last, old_firsts, old_counts, old_keys, old_units, old_updates,
    old_totals, num_requests, num_rows, num_old_rows, TILE: tl.constexpr, HEADS: tl.constexpr, TOTALS: tl.constexpr,
    GROUPS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Grid: layers * requests, nodes. Rows on the path go behind those that wait, their G counted from there."""
    request, node = tl.program_id(0) % num_requests, tl.program_id(1)
    layer = (tl.program_id(0) // num_requests).to(tl.int64)
    end_node, first = tl.load(last + request), tl.load(firsts + request)
    path = tl.load(bits + first + end_node, mask=end_node >= 0, other=0)
    if ((path >> node) & 1) == 1:
        nodes, heads = tl.arange(0, TILE), tl.arange(0, TOTALS)
        waiting = tl.load(old_counts + request)
        behind = waiting + tl.sum(tl.where(nodes < node, (path >> nodes) & 1, 0), 0)
        begin = layer * num_old_rows + tl.load(old_firsts + request)
        row, to_row = layer * num_rows + first + node, begin + behind
        _copy(keys, old_keys, row, to_row, HEADS // GROUPS * KEY, CHUNK)
        _copy(units, old_units, row, to_row, HEADS // GROUPS, TOTALS)
        _copy(updates, old_updates, row, to_row, HEADS * VALUE, CHUNK)
        is_head = heads < HEADS
        faded = tl.load(old_totals + (begin + waiting - 1) * HEADS + heads, mask=is_head & (waiting > 0), other=0.0)
        total = tl.load(totals + row * HEADS + heads, mask=is_head, other=0.0)
        tl.store(old_totals + to_row * HEADS + heads, total + faded, mask=is_head)
