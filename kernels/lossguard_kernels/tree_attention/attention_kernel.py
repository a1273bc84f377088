# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernels of tree attention, in two parts whose softmaxes are merged.

Part A, committed positions: every row sees all of them, so that only their end is masked; they are split over
programs. Part B, the tree's own nodes: row i sees node j where bit j of its word is set. The queries that share a key
head, of many nodes, are one tile, so that keys and values are read once for all of them. With m the largest score of a
part, l the sum of exp(s - m) and o the weighted values,

    m* = max m_i        out = sum_i exp(m_i - m*) o_i / sum_i exp(m_i - m*) l_i

(Milakov, Gimelshein: https://arxiv.org/abs/1805.02867; splits as in Flash-Decoding). Scores are kept in base 2.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _dot(a, b, WIDE: tl.constexpr, CAST: tl.constexpr):
    if WIDE or CAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="tf32x3")
    return tl.dot(a, b)


@triton.jit
def _merged(q, k, v, visible, scale, largest, total, mixed, WIDE: tl.constexpr, CAST: tl.constexpr):  # noqa: PLR0913
    """The running softmax with one tile of keys more."""
    scores = tl.where(visible, _dot(q, tl.trans(k), WIDE, CAST) * scale, float("-inf"))
    larger = tl.maximum(largest, tl.max(scores, 1))
    shift = tl.where(larger == float("-inf"), 0.0, larger)  # rows that have seen nothing yet
    weights = tl.exp2(scores - shift[:, None])
    fading = tl.exp2(largest - shift)
    total = total * fading + tl.sum(weights, 1)
    if not CAST:
        weights = weights.to(v.dtype)
    mixed = mixed * fading[:, None] + _dot(weights, v, WIDE, CAST)
    return larger, total, mixed


@triton.jit
def _tile_of(pool, table, positions, is_there, head, inside, is_inside, HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr):  # noqa: PLR0913, E501  # fmt: skip
    page = tl.load(table + positions // PAGE, mask=is_there, other=0)
    row = (page * HEADS + head) * PAGE + positions % PAGE
    return tl.load(pool + row[:, None] * DIM + inside, mask=is_there[:, None] & is_inside, other=0.0)


@triton.jit
def attend_kernel(  # noqa: PLR0913
    query, keys, values, table, past_lengths, firsts, counts, bits, output, partial, maxima, sums, query_stride, scale,
    num_pages, split_length, row_blocks, HEADS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, PAGE: tl.constexpr, SPLITS: tl.constexpr,
    WIDE: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    """Grid: requests * blocks of rows, key heads, SPLITS of part A and one program for part B (both in one if 1)."""
    request, head, split = tl.program_id(0) // row_blocks, tl.program_id(1), tl.program_id(2)
    rows = tl.program_id(0) % row_blocks * ROWS + tl.arange(0, ROWS)
    first, count, past = tl.load(firsts + request), tl.load(counts + request), tl.load(past_lengths + request)
    own, inside = rows // GROUPS, tl.arange(0, PADDED)
    is_row, is_inside = own < count, (inside < DIM)[None, :]
    at = (first + own)[:, None] * query_stride + (head * GROUPS + rows % GROUPS)[:, None] * DIM + inside
    q = tl.load(query + at, mask=is_row[:, None] & is_inside, other=0.0)
    largest, total = tl.full((ROWS,), float("-inf"), tl.float32), tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, PADDED), tl.float32)
    own_table = table + request * num_pages
    begin = tl.minimum(split * split_length, past)
    end = tl.minimum(begin + split_length, past)
    nodes_end = count
    if SPLITS > 1:
        end = tl.where(split < SPLITS, end, begin)
        nodes_end = tl.where(split < SPLITS, 0, count)
    for start in range(begin, end, COLUMNS):
        positions = start + tl.arange(0, COLUMNS)
        is_there = positions < end
        k = _tile_of(keys, own_table, positions, is_there, head, inside, is_inside, HEADS, DIM, PAGE)
        v = _tile_of(values, own_table, positions, is_there, head, inside, is_inside, HEADS, DIM, PAGE)
        largest, total, mixed = _merged(q, k, v, is_there[None, :], scale, largest, total, mixed, WIDE, CAST)
    seen = tl.load(bits + first + own, mask=is_row, other=0)
    for start in range(0, nodes_end, COLUMNS):
        nodes = start + tl.arange(0, COLUMNS)
        is_there = nodes < nodes_end
        k = _tile_of(keys, own_table, past + nodes, is_there, head, inside, is_inside, HEADS, DIM, PAGE)
        v = _tile_of(values, own_table, past + nodes, is_there, head, inside, is_inside, HEADS, DIM, PAGE)
        visible = (((seen[:, None] >> tl.minimum(nodes, 63)[None, :]) & 1) == 1) & is_there[None, :]
        largest, total, mixed = _merged(q, k, v, visible, scale, largest, total, mixed, WIDE, CAST)
    if SPLITS == 1:
        out = (first + own)[:, None] * (HEADS * GROUPS) + (head * GROUPS + rows % GROUPS)[:, None]
        done = mixed / tl.where(is_row, total, 1.0)[:, None]
        tl.store(output + out * DIM + inside, done.to(output.dtype.element_ty), mask=is_row[:, None] & is_inside)
    else:
        part = ((request * HEADS + head).to(tl.int64) * (SPLITS + 1) + split) * (row_blocks * ROWS) + rows
        tl.store(maxima + part, largest, mask=is_row)
        tl.store(sums + part, total, mask=is_row)
        tl.store(partial + part[:, None] * DIM + inside, mixed, mask=is_row[:, None] & is_inside)


@triton.jit
def merge_kernel(  # noqa: PLR0913
    partial, maxima, sums, firsts, counts, output, most_rows, HEADS: tl.constexpr, GROUPS: tl.constexpr,
    DIM: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Grid: requests, key heads, rows of a tile."""
    request, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    own, inside = row // GROUPS, tl.arange(0, PADDED)
    if own < tl.load(counts + request):
        part = (request * HEADS + head).to(tl.int64) * PARTS * most_rows + row
        largest = tl.load(maxima + part)
        for split in range(1, PARTS):
            largest = tl.maximum(largest, tl.load(maxima + part + split * most_rows))
        total, mixed = 0.0, tl.zeros((PADDED,), tl.float32)
        for split in range(PARTS):
            place = part + split * most_rows
            weight = tl.exp2(tl.load(maxima + place) - largest)
            total += weight * tl.load(sums + place)
            mixed += weight * tl.load(partial + place * DIM + inside, mask=inside < DIM, other=0.0)
        out = ((tl.load(firsts + request) + own) * HEADS + head) * GROUPS + row % GROUPS
        tl.store(output + out * DIM + inside, (mixed / total).to(output.dtype.element_ty), mask=inside < DIM)
