# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernel of the convolution of delta layers for single tokens: the past moves on where it lies.

A program holds some channels with all their taps. Sums are in float32, rounded before SiLU as in ``targets``. Trees:
``lossguard_kernels.wy_verify.convolution``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


@triton.jit
def _step_kernel(  # noqa: PLR0913
    channels, weight, past, slots, output, stride, NUM: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    sequence, channel = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot, taps = tl.load(slots + sequence), tl.arange(0, TAPS)
    is_channel = channel < NUM
    own = past + (slot * NUM + channel[:, None]) * (WIDTH - 1) + taps  # oldest first
    older = tl.load(own, mask=is_channel[:, None] & (taps < WIDTH - 1)[None, :], other=0.0)
    newest = tl.load(channels + sequence * stride + channel, mask=is_channel, other=0.0)
    x = tl.where((taps == WIDTH - 1)[None, :], newest[:, None], older)
    is_tap = is_channel[:, None] & (taps < WIDTH)[None, :]
    w = tl.load(weight + channel[:, None] * WIDTH + taps, mask=is_tap, other=0.0)
    mixed = tl.sum(x.to(tl.float32) * w.to(tl.float32), 1)
    rounded = mixed.to(output.dtype.element_ty).to(tl.float32)
    out = (rounded * tl.sigmoid(rounded)).to(output.dtype.element_ty)
    tl.store(output + sequence * NUM + channel, out, mask=is_channel)
    tl.debug_barrier()  # all of the past is read before any of it changes
    tl.store(own - 1, x.to(past.dtype.element_ty), mask=is_tap & (taps > 0)[None, :])


def convolve_step_in_place(channels: Tensor, weight: Tensor, past: Tensor, slots: Tensor) -> Tensor:
    """One token of each of B sequences: ``channels`` [B, C] (rows may lie apart), ``weight`` [C, width].

    ``past`` [slots, C, width - 1] of one layer moves on by a column in the slots ``slots`` [B]. Returns [B, C].
    """
    output = torch.empty_like(channels, memory_format=torch.contiguous_format)
    (batch, num), width = channels.shape, weight.shape[1]
    _step_kernel[(batch, triton.cdiv(num, _BLOCK))](
        channels, weight, past, slots, output, channels.stride(0), NUM=num, WIDTH=width,
        TAPS=triton.next_power_of_2(width), BLOCK=_BLOCK,
    )  # fmt: skip
    return output
