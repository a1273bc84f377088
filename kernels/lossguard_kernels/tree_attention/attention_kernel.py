# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernels of tree attention, whose positions are parted over programs and their softmaxes merged.

Committed positions are seen by every row; behind them lie the tree's own nodes: row i sees node j where bit j of its
word is set. Only tiles that reach behind the committed positions are masked. The queries that share a key head, of many
nodes, are one tile, so that keys and values are read once for all of them. With m the largest score of a part, l the
sum of exp(s - m) and o the weighted values,

    m* = max m_i        out = sum_i exp(m_i - m*) o_i / sum_i exp(m_i - m*) l_i

(Milakov, Gimelshein: https://arxiv.org/abs/1805.02867; splits as in Flash-Decoding). Scores are kept in base 2.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _dot(a, b, WIDE: tl.constexpr, CAST: tl.constexpr):
    return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="tf32x3") if WIDE or CAST else tl.dot(a, b)


@triton.jit
def _page_of(own_table, positions, last, PAGE: tl.constexpr):
    return tl.load(own_table + tl.minimum(positions, last) // PAGE).to(tl.int32)


@triton.jit
def _rows_at(page, positions, head, HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr):
    """Offsets of rows of ``DIM`` channels within a pool; ``page`` is where each position lies."""
    return page.to(tl.int64) * (HEADS * PAGE * DIM) + (head * PAGE + positions % PAGE) * DIM


@triton.jit
def _load(at, is_inside, DIM: tl.constexpr, PADDED: tl.constexpr):
    return tl.load(at) if DIM == PADDED else tl.load(at, mask=is_inside, other=0.0)


@triton.jit
def _part(end, parts, COLUMNS: tl.constexpr):
    """Positions of a part: whole tiles, so that only the last one of all is cut."""
    return tl.cdiv(tl.cdiv(end, parts), COLUMNS) * COLUMNS


@triton.jit(do_not_specialize=["num_pages", "parts", "row_blocks"])  # contexts grow: the same code for all
def attend_kernel(  # noqa: PLR0913
    query, keys, values, table, past_lengths, firsts, counts, bits, output, partial, maxima, sums, query_stride, scale,
    num_pages, parts, row_blocks, HEADS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, PAGE: tl.constexpr, IS_WHOLE: tl.constexpr,
    WIDE: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    """Grid: requests * blocks of rows, key heads, parts (one if ``IS_WHOLE``)."""
    request, head, split = tl.program_id(0) // row_blocks, tl.program_id(1), tl.program_id(2)
    rows = tl.program_id(0) % row_blocks * ROWS + tl.arange(0, ROWS)
    first, count = tl.load(firsts + request), tl.load(counts + request).to(tl.int32)
    past = tl.load(past_lengths + request).to(tl.int32)
    end = past + count
    begin = 0
    if not IS_WHOLE:
        length = _part(end, parts, COLUMNS)
        begin = split * length
        end = tl.minimum(begin + length, end)
    own_table, steps = table + request * num_pages, tl.arange(0, COLUMNS)
    last = tl.maximum(end - 1, 0)  # what lies behind is read from here, where numbers are finite, and masked
    page = _page_of(own_table, begin + steps, last, PAGE)
    own, inside = rows // GROUPS, tl.arange(0, PADDED)
    is_row, is_inside = own < count, (inside < DIM)[None, :]
    at = own[:, None] * query_stride + (rows % GROUPS)[:, None] * DIM + inside
    own_query = query + first * query_stride + head * GROUPS * DIM
    q = tl.load(own_query + at, mask=is_row[:, None] & is_inside, other=0.0)
    seen = tl.load(bits + first + own, mask=is_row, other=0)
    largest, total = tl.full((ROWS,), float("-inf"), tl.float32), tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, PADDED), tl.float32)
    for start in range(begin, end, COLUMNS):
        offsets = _rows_at(page, tl.minimum(start + steps, last), head, HEADS, DIM, PAGE)[:, None] + inside
        k, v = _load(keys + offsets, is_inside, DIM, PADDED), _load(values + offsets, is_inside, DIM, PADDED)
        page = _page_of(own_table, start + COLUMNS + steps, last, PAGE)  # of the next tile, in time
        scores = _dot(q, tl.trans(k), WIDE, CAST)
        if start + COLUMNS > past:
            nodes = start + steps - past
            is_seen = (nodes < 0)[None, :] | (
                ((seen[:, None] >> tl.minimum(tl.maximum(nodes, 0), 63)[None, :]) & 1) == 1
            )
            scores = tl.where(is_seen & (nodes < end - past)[None, :], scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1) * scale)
        shift = tl.where(larger == float("-inf"), 0.0, larger)  # rows that have seen nothing yet
        weights = tl.exp2(scores * scale - shift[:, None])
        fading = tl.exp2(largest - shift)
        total = total * fading + tl.sum(weights, 1)
        if not CAST:
            weights = weights.to(v.dtype)
        mixed = mixed * fading[:, None] + _dot(weights, v, WIDE, CAST)
        largest = larger
    if IS_WHOLE:
        rows += tl.minimum(num_pages, 0)  # 0: made anew, so that no registers hold them through the loop
        own = rows // GROUPS
        is_row = own < count
        own_output = output + (first * HEADS + head) * GROUPS * DIM
        at = (own * HEADS * GROUPS + rows % GROUPS)[:, None] * DIM + inside
        done = mixed / tl.where(is_row, total, 1.0)[:, None]
        tl.store(own_output + at, done.to(output.dtype.element_ty), mask=is_row[:, None] & is_inside)
    else:
        is_kept = (rows < count * GROUPS) & (begin < end)
        part = ((request * HEADS + head) * parts + split).to(tl.int64) * (row_blocks * ROWS)
        tl.store(maxima + part + rows, largest, mask=is_kept)
        tl.store(sums + part + rows, total, mask=is_kept)
        at = rows[:, None] * DIM + inside
        tl.store(partial + part * DIM + at, mixed, mask=is_kept[:, None] & is_inside)


@triton.jit(do_not_specialize=["most_rows", "parts"])
def merge_kernel(  # noqa: PLR0913
    partial, maxima, sums, past_lengths, firsts, counts, output, most_rows, parts, HEADS: tl.constexpr,
    GROUPS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Grid: requests, key heads, rows of a tile. ``PARTS``: a power of two, no less than ``parts``."""
    request, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    own, inside = row // GROUPS, tl.arange(0, PADDED)
    count = tl.load(counts + request)
    if own < count:
        end = (tl.load(past_lengths + request) + count).to(tl.int32)
        used = tl.cdiv(end, _part(end, parts, COLUMNS))
        part = (request * HEADS + head).to(tl.int64) * parts * most_rows + row
        every = tl.arange(0, PARTS)
        largest = tl.max(tl.load(maxima + part + every * most_rows, mask=every < used, other=float("-inf")), 0)
        total, mixed = 0.0, tl.zeros((PADDED,), tl.float32)
        for begin in range(0, used, AT_ONCE):
            some = begin + tl.arange(0, AT_ONCE)
            is_used, place = some < used, part + some * most_rows
            weights = tl.exp2(tl.load(maxima + place, mask=is_used, other=float("-inf")) - largest)
            total += tl.sum(weights * tl.load(sums + place, mask=is_used, other=0.0), 0)
            is_there = is_used[:, None] & (inside < DIM)[None, :]
            found = tl.load(partial + place[:, None] * DIM + inside, mask=is_there, other=0.0)
            mixed += tl.sum(weights[:, None] * found, 0)
        out = ((tl.load(firsts + request) + own) * HEADS + head) * GROUPS + row % GROUPS
        tl.store(output + out * DIM + inside, (mixed / total).to(output.dtype.element_ty), mask=inside < DIM)
