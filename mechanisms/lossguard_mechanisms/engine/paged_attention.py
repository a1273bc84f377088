# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernels for attention over pages: keys and values are read where they lie, once.

For each sequence b, key head h and split of its pages one program folds the groups * T query rows that share the head
into one tile and keeps a running softmax (Dao: FlashAttention-2, https://arxiv.org/abs/2307.08691; splits as in
Flash-Decoding); a second kernel merges the splits. With m the largest score, l the sum of exp(s - m) and o the weighted
values of a split,

    m* = max m_i        out = sum_i exp(m_i - m*) o_i / sum_i exp(m_i - m*) l_i

Row t of a sequence sees all places before its step and, of the step's own rows, those whose bit is set in
``bits[b, t]``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lossguard_mechanisms.engine.paged_step import PagedStep

_LEAST_TILE = 16
_NUM_PROGRAMS = 264  # two for each multiprocessor of the largest devices


@triton.jit
def _write_kernel(key, value, keys, values, writes, DIM: tl.constexpr):
    row = tl.program_id(0)
    place = tl.load(writes + row)
    columns = tl.arange(0, DIM)
    tl.store(keys + place * DIM + columns, tl.load(key + row * DIM + columns))
    tl.store(values + place * DIM + columns, tl.load(value + row * DIM + columns))


@triton.jit
def _split_kernel(  # noqa: PLR0913
    query, keys, values, table, past_lengths, bits, partial, maxima, sums, scale, num_pages,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, OWN: tl.constexpr, TILE: tl.constexpr, DIM: tl.constexpr,
    PAGE: tl.constexpr, PAGES: tl.constexpr,
):  # fmt: skip
    sequence, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = tl.arange(0, TILE)
    columns = tl.arange(0, DIM)
    own, group = rows % OWN, rows // OWN
    is_row = rows < OWN * GROUPS
    at = ((sequence * OWN + own) * HEADS + head) * GROUPS + group
    q = tl.load(query + at[:, None] * DIM + columns, mask=is_row[:, None], other=0.0)
    past = tl.load(past_lengths + sequence)
    seen = tl.load(bits + sequence * OWN + own, mask=is_row, other=0)
    largest = tl.full((TILE,), float("-inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    mixed = tl.zeros((TILE, DIM), tl.float32)
    inside = tl.arange(0, PAGE)
    needed = tl.minimum(tl.cdiv(past + OWN, PAGE), num_pages)
    for step in range(PAGES):
        index = split * PAGES + step
        is_needed = index < needed  # pages past the sequence's end are not read
        page = tl.load(table + sequence * num_pages + index, mask=is_needed, other=0)
        block = (page * HEADS + head) * PAGE * DIM + inside[:, None] * DIM + columns
        k = tl.load(keys + block, mask=is_needed, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        mine = index * PAGE + inside - past
        bit = (seen[:, None] >> tl.minimum(tl.maximum(mine, 0), 63)[None, :]) & 1
        visible = is_needed & ((mine < 0)[None, :] | ((bit == 1) & (mine < OWN)[None, :]))
        scores = tl.where(visible, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        shift = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp(scores - shift[:, None])
        fading = tl.exp(largest - shift)
        total = total * fading + tl.sum(weights, 1)
        mixed = mixed * fading[:, None] + tl.dot(
            weights.to(k.dtype), tl.load(values + block, mask=is_needed, other=0.0)
        )
        largest = larger
    out = ((sequence * HEADS + head) * tl.num_programs(2) + split) * TILE + rows
    tl.store(maxima + out, largest)
    tl.store(sums + out, total)
    tl.store(partial + out[:, None] * DIM + columns, mixed)


@triton.jit
def _merge_kernel(  # noqa: PLR0913
    partial, maxima, sums, output,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, OWN: tl.constexpr, TILE: tl.constexpr, DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    sequence, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    columns = tl.arange(0, DIM)
    base = (sequence * HEADS + head) * SPLITS * TILE + row
    largest = tl.load(maxima + base)
    for split in range(1, SPLITS):
        largest = tl.maximum(largest, tl.load(maxima + base + split * TILE))
    total, mixed = 0.0, tl.zeros((DIM,), tl.float32)
    for split in range(SPLITS):
        weight = tl.exp(tl.load(maxima + base + split * TILE) - largest)
        total += weight * tl.load(sums + base + split * TILE)
        mixed += weight * tl.load(partial + (base + split * TILE) * DIM + columns)
    at = ((sequence * OWN + row % OWN) * HEADS + head) * GROUPS + row // OWN
    tl.store(output + at * DIM + columns, (mixed / total).to(output.dtype.element_ty))


def write_rows(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, step: PagedStep) -> None:
    """Put ``key`` and ``value`` [N, key heads, dim] at ``step.writes`` of one layer's pools."""
    grid = (step.writes.shape[0],)
    _write_kernel[grid](key.contiguous(), value.contiguous(), keys, values, step.writes, DIM=key.shape[-1])


def attend_pages(query: Tensor, keys: Tensor, values: Tensor, step: PagedStep) -> Tensor:
    """Attention of ``query`` [B * T, heads, dim] over pools [pages, key heads, page_size, dim]; same shape back.

    ``dim`` and the page size are powers of two, at least 16; T is at most 64.
    """
    (batch, own), (_, key_heads, page, dim) = step.bits.shape, keys.shape
    groups = query.shape[1] // key_heads
    tile = max(_LEAST_TILE, triton.next_power_of_2(own * groups))
    num_pages = step.table.shape[1]
    num_splits = max(1, min(num_pages, _NUM_PROGRAMS // (batch * key_heads)))
    pages_per_split = triton.cdiv(num_pages, num_splits)
    num_splits = triton.cdiv(num_pages, pages_per_split)
    partial = torch.empty((batch, key_heads, num_splits, tile, dim), dtype=torch.float32, device=query.device)
    maxima, sums = (torch.empty(partial.shape[:-1], dtype=torch.float32, device=query.device) for _ in range(2))
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    shape = {"HEADS": key_heads, "GROUPS": groups, "OWN": own, "TILE": tile, "DIM": dim}
    _split_kernel[(batch, key_heads, num_splits)](
        query.contiguous(), keys, values, step.table, step.past_lengths, step.bits, partial, maxima, sums,
        dim**-0.5, num_pages, PAGE=page, PAGES=pages_per_split, **shape,
    )  # fmt: skip
    _merge_kernel[(batch, key_heads, own * groups)](partial, maxima, sums, output, SPLITS=num_splits, **shape)
    return output
