"""The reference: decode every weight, then multiply in the precision that is asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from lossguard_kernels.w12_gemm.weights import BAND_ROWS, KernelWeights, escape_rows


def decode(weights: KernelWeights) -> Tensor:
    """The bf16 weights [rows, columns], bit for bit."""
    bits = _magnitude(weights, _nibbles(weights)) | _sign(weights)
    flat = _matrix(weights, bits)
    row = escape_rows(weights.escape_start, weights.escape_place)
    column = weights.escape_place[: row.numel()].to(torch.int64) & 0xFFFFFF
    flat[row, column] = weights.escape_bits[: row.numel()]
    return flat[: weights.rows, : weights.columns].contiguous().view(torch.bfloat16)


def decode_hi(weights: KernelWeights) -> Tensor:
    """What the 8-bit plane alone says, bf16 [rows, columns]: low mantissa bits and escapes are zero."""
    zeros = torch.zeros(1, dtype=torch.int32, device=weights.device)
    flat = _matrix(weights, _magnitude(weights, zeros) | _sign(weights))
    return flat[: weights.rows, : weights.columns].contiguous().view(torch.bfloat16)


def product(x: Tensor, weights: KernelWeights, *, hi_only: bool = False) -> Tensor:
    """``x W^T`` in float64, [m, rows], for x [m, columns]."""
    dense = decode_hi(weights) if hi_only else decode(weights)
    return x.double() @ dense.double().T


def _nibbles(weights: KernelWeights) -> Tensor:
    """int32 [bands, tiles, 16, 64]."""
    words = weights.lo.to(torch.int32).unflatten(3, (-1, 1, 4))
    return torch.cat((words & 15, words >> 4), dim=4).flatten(3)


def _magnitude(weights: KernelWeights, nibbles: Tensor) -> Tensor:
    record = ((weights.hi.to(torch.int32) & 0x7F) << 4) | nibbles
    base = weights.base.to(torch.int32) << 7
    by_row = base if base.numel() == 1 else base.view(-1, 1, BAND_ROWS, 1)
    return torch.where(record < 0x80, 0, record + by_row)


def _sign(weights: KernelWeights) -> Tensor:
    return (weights.hi.to(torch.int32) & 0x80) << 8


def _matrix(weights: KernelWeights, tiles: Tensor) -> Tensor:
    """int32 [bands, tiles, 16, 64] -> int16 [padded rows, padded columns]."""
    return tiles.to(torch.int16).transpose(1, 2).reshape(weights.num_bands * BAND_ROWS, -1)
