"""The 8-bit plane read alone: weights with their mantissa cut to three bits, at no cost in memory.

Every byte of HI is a number in E4M3. With the base b of its row, ``2^(b - 120) * e4m3(byte)`` is the weight with its
four lowest mantissa bits cleared, exactly; an escape reads as zero. This is lossy on purpose: something to draft with.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lossguard_mechanisms.weights.w12.tiles import strips_of
from lossguard_mechanisms.weights.w12.w12_tensor import W12Tensor, hi_tiles

SCALE_OFFSET = 120
"""127, the bias of bf16, less 7, the bias of E4M3."""


def q_tiles(coded: W12Tensor) -> tuple[Tensor, Tensor]:
    """HI as float8_e4m3fn without a copy: [bands, full tiles, 16, 128], and the narrower last tiles [bands, 16, w]."""
    full, rest = hi_tiles(coded)
    return full.view(torch.float8_e4m3fn), rest.view(torch.float8_e4m3fn)


def q_scale(coded: W12Tensor) -> Tensor:
    """What a row's E4M3 numbers are multiplied with, float32 [1] or [padded rows]: a power of two, exact."""
    return torch.ldexp(torch.ones_like(coded.base, dtype=torch.float32), coded.base.to(torch.int32) - SCALE_OFFSET)


def q_weight(coded: W12Tensor) -> Tensor:
    """The cut weights in float32, of the shape that was encoded: the reference for kernels that read HI alone."""
    layout = coded.layout
    rows = torch.empty(layout.padded_rows, layout.padded_columns, device=coded.hi.device)
    numbers = coded.hi.view(torch.float8_e4m3fn).to(torch.float32)
    for strip in strips_of(layout):
        strip.of_rows(rows, 1).copy_(strip.of_plane(numbers, 1))
    scaled = rows * q_scale(coded)[:, None]
    return scaled[: layout.rows, : layout.columns].reshape(coded.shape)
