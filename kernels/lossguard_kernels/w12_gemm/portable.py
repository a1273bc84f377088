"""The same product in Triton: for devices without NVRTC or bulk copies, and for Triton's interpreter on a CPU.

One program has 16 rows of W and up to 64 of x. Weights are rebuilt with their base, so x needs no scaling.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from lossguard_kernels.w12_gemm.weights import BAND_ROWS, TILE_COLUMNS, KernelWeights

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's interpreter multiplies the bit patterns of bf16 operands, and cuts float32 where it should round to bf16.
There, operands and outputs are float32, which changes no product."""

_CHUNK = 16


@triton.jit
def _decoded(hi, lo, shift, base, HI_ONLY: tl.constexpr):
    record = (hi & 0x7F) << 4
    if not HI_ONLY:
        record = record | ((lo >> shift) & 15)
    magnitude = tl.where(record == 0, 0, record + (base << 7))
    bits = ((hi & 0x80) << 8) | magnitude
    return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _escapes(
    acc, x_ptr, start_ptr, place_ptr, bits_ptr, m, x_stride, M: tl.constexpr, CHUNK: tl.constexpr, CAST: tl.constexpr
):
    """Escapes as further columns: CHUNK of them at a time, each weight in its row and zeros elsewhere."""
    band = tl.program_id(0)
    first, end = tl.load(start_ptr + band), tl.load(start_ptr + band + 1)
    rows, ms = tl.arange(0, 16), tl.arange(0, M)
    chunk = first
    while chunk < end:  # Triton's interpreter takes no loaded bounds in range()
        entry = chunk + tl.arange(0, CHUNK)
        exists = entry < end
        place = tl.load(place_ptr + entry, mask=exists, other=0)
        bits = tl.load(bits_ptr + entry, mask=exists, other=0)
        weight = bits.to(tl.bfloat16, bitcast=True)
        at_row = (((place >> 24) & 15)[None, :] == rows[:, None]) & exists[None, :]
        weights = tl.where(at_row, weight[None, :], 0.0).to(tl.bfloat16)
        columns = place & 0xFFFFFF
        wanted = exists[:, None] & (ms < m)[None, :]
        x = tl.load(x_ptr + ms[None, :] * x_stride + columns[:, None], mask=wanted, other=0.0)
        if CAST:
            weights, x = weights.to(tl.float32), x.to(tl.float32)
        acc = tl.dot(weights, x, acc, input_precision="ieee")
        chunk += CHUNK
    return acc


@triton.jit
def _product_kernel(
    x_ptr, hi_ptr, lo_ptr, base_ptr, start_ptr, place_ptr, bits_ptr, bias_ptr, y_ptr, m, x_stride, y_stride,
    NUM_TILES: tl.constexpr, M: tl.constexpr, BASE_STEP: tl.constexpr, HI_ONLY: tl.constexpr, HAS_BIAS: tl.constexpr,
    CHUNK: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    band = tl.program_id(0).to(tl.int64)
    rows, columns, ms = tl.arange(0, 16), tl.arange(0, 64), tl.arange(0, M)
    base = tl.load(base_ptr + (band * 16 + rows) * BASE_STEP).to(tl.int32)
    shift = (columns % 8) // 4 * 4
    under = columns // 8 * 4 + columns % 4
    acc = tl.zeros((16, M), dtype=tl.float32)
    for tile in range(NUM_TILES):
        at = band * NUM_TILES + tile
        hi = tl.load(hi_ptr + at * 1024 + rows[:, None] * 64 + columns[None, :]).to(tl.int32)
        lo = hi
        if not HI_ONLY:
            lo = tl.load(lo_ptr + at * 512 + rows[:, None] * 32 + under[None, :]).to(tl.int32)
        weights = _decoded(hi, lo, shift[None, :], base[:, None], HI_ONLY)
        x = tl.load(x_ptr + ms[None, :] * x_stride + (tile * 64 + columns)[:, None], mask=(ms < m)[None, :], other=0.0)
        if CAST:
            acc = tl.dot(weights.to(tl.float32), x.to(tl.float32), acc, input_precision="ieee")
        else:
            acc = tl.dot(weights, x, acc)
    if not HI_ONLY:
        acc = _escapes(acc, x_ptr, start_ptr, place_ptr, bits_ptr, m, x_stride, M, CHUNK, CAST)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + band * 16 + rows).to(tl.float32)[:, None]
    target = y_ptr + ms[None, :].to(tl.int64) * y_stride + (band * 16 + rows)[:, None]
    tl.store(target, acc.to(y_ptr.dtype.element_ty), mask=(ms < m)[None, :])


def portable_linear(x: Tensor, weights: KernelWeights, bias: Tensor | None = None, *, hi_only: bool = False) -> Tensor:
    """``x W^T + bias`` for x [m, 64 * tiles] in bf16, m from 1 to 64: [m, 16 * bands]; bias [16 * bands]."""
    m = x.shape[0]
    assert x.shape[1] == TILE_COLUMNS * weights.num_tiles, "x is padded to whole tiles"
    assert x.stride(1) == 1, "rows of x are contiguous"
    dtype = torch.float32 if INTERPRETED else torch.bfloat16
    y = torch.empty(m, BAND_ROWS * weights.num_bands, dtype=dtype, device=x.device)
    _product_kernel[(weights.num_bands,)](
        x,
        weights.hi,
        weights.lo,
        weights.base,
        weights.escape_start,
        weights.escape_place,
        weights.escape_bits,
        x if bias is None else bias,
        y,
        m,
        x.stride(0),
        y.stride(0),
        NUM_TILES=weights.num_tiles,
        M=max(16, triton.next_power_of_2(m)),
        BASE_STEP=int(weights.base.numel() > 1),
        HI_ONLY=hi_only,
        HAS_BIAS=bias is not None,
        CHUNK=_CHUNK,
        CAST=INTERPRETED,
        num_warps=1,
    )
    return y.to(torch.bfloat16)
