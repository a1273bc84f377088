# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernels of the convolution of delta layers: single tokens, nodes of a tree, and the commit of a path.

A program holds some channels with all their taps. Sums are in float32, rounded before SiLU as in ``targets``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


@triton.jit
def _silu_of(mixed, LIKE: tl.constexpr):
    rounded = mixed.to(LIKE).to(tl.float32)
    return (rounded * tl.sigmoid(rounded)).to(LIKE)


@triton.jit
def _columns(channels, past, sources, rows, channel, slot, stride, NUM: tl.constexpr, WIDTH: tl.constexpr):  # noqa: PLR0913
    """[channels, taps] of columns ``sources`` [taps]: below WIDTH - 1 the past, else rows of the step; -1 is zero."""
    is_past = (sources >= 0) & (sources < WIDTH - 1)
    is_inside = channel[:, None] < NUM
    old = past + (slot * NUM + channel[:, None]) * (WIDTH - 1) + sources[None, :]
    new = channels + (rows + sources[None, :] - (WIDTH - 1)) * stride + channel[:, None]
    earlier = tl.load(old, mask=is_inside & is_past[None, :], other=0.0)
    own = tl.load(new, mask=is_inside & (sources >= WIDTH - 1)[None, :], other=0.0)
    return tl.where(is_past[None, :], earlier, own)


@triton.jit
def _step_kernel(  # noqa: PLR0913
    channels, weight, past, slots, output, stride, NUM: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    sequence, channel = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot, taps = tl.load(slots + sequence), tl.arange(0, TAPS)
    is_tap = (channel[:, None] < NUM) & (taps < WIDTH)[None, :]
    sources = tl.where(taps < WIDTH, taps, -1)
    x = _columns(channels, past, sources, sequence, channel, slot, stride, NUM, WIDTH)
    w = tl.load(weight + channel[:, None] * WIDTH + taps, mask=is_tap, other=0.0)
    mixed = tl.sum(tl.where(is_tap, x.to(tl.float32) * w.to(tl.float32), 0.0), 1)
    tl.store(output + sequence * NUM + channel, _silu_of(mixed, output.dtype.element_ty), mask=channel < NUM)
    tl.debug_barrier()  # all of the past is read before any of it changes
    place = past + (slot * NUM + channel[:, None]) * (WIDTH - 1) + taps - 1
    tl.store(place, x.to(past.dtype.element_ty), mask=is_tap & (taps > 0)[None, :])


@triton.jit
def _tree_kernel(  # noqa: PLR0913
    channels, weight, past, slots, sources, output, stride, NODES: tl.constexpr, NUM: tl.constexpr,
    WIDTH: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    node, channel = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sequence, taps = node // NODES, tl.arange(0, TAPS)
    slot = tl.load(slots + sequence)
    is_tap = (channel[:, None] < NUM) & (taps < WIDTH)[None, :]
    found = tl.load(sources + node * WIDTH + taps, mask=taps < WIDTH, other=-1)
    x = _columns(channels, past, found, sequence * NODES, channel, slot, stride, NUM, WIDTH)
    w = tl.load(weight + channel[:, None] * WIDTH + taps, mask=is_tap, other=0.0)
    mixed = tl.sum(tl.where(is_tap, x.to(tl.float32) * w.to(tl.float32), 0.0), 1)
    tl.store(output + node * NUM + channel, _silu_of(mixed, output.dtype.element_ty), mask=channel < NUM)


@triton.jit
def _commit_kernel(  # noqa: PLR0913
    channels, past, slots, sources, last, stride, NODES: tl.constexpr, NUM: tl.constexpr, WIDTH: tl.constexpr,
    TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    sequence, channel = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot, taps = tl.load(slots + sequence), tl.arange(0, TAPS)
    node = sequence * NODES + tl.load(last + sequence)
    is_kept = (taps > 0) & (taps < WIDTH)
    found = tl.load(sources + node * WIDTH + taps, mask=is_kept, other=-1)
    x = _columns(channels, past, found, sequence * NODES, channel, slot, stride, NUM, WIDTH)
    tl.debug_barrier()  # as above
    place = past + (slot * NUM + channel[:, None]) * (WIDTH - 1) + taps - 1
    tl.store(place, x.to(past.dtype.element_ty), mask=(channel[:, None] < NUM) & is_kept[None, :])


def convolve_step_in_place(channels: Tensor, weight: Tensor, past: Tensor, slots: Tensor) -> Tensor:
    """One token of each of B sequences: ``channels`` [B, C] (rows may lie apart), ``weight`` [C, width].

    ``past`` [slots, C, width - 1] of one layer moves on by a column in the slots ``slots`` [B]. Returns [B, C].
    """
    output = torch.empty_like(channels, memory_format=torch.contiguous_format)
    _step_kernel[_grid(channels)](
        channels, weight, past, slots, output, channels.stride(0), NUM=channels.shape[1], **_widths(weight)
    )
    return output


def convolve_tree(channels: Tensor, weight: Tensor, past: Tensor, slots: Tensor, sources: Tensor) -> Tensor:
    """As ``verification.verify_convolution``, with ``channels`` [B * N, C] and the past read where it lies."""
    output = torch.empty_like(channels, memory_format=torch.contiguous_format)
    _tree_kernel[_grid(channels)](
        channels, weight, past, slots, sources, output, channels.stride(0), NODES=sources.shape[1],
        NUM=channels.shape[1], **_widths(weight),
    )  # fmt: skip
    return output


def commit_convolution_in_place(channels: Tensor, past: Tensor, slots: Tensor, sources: Tensor, last: Tensor) -> None:
    """The window of node ``last`` [B] without its oldest column becomes the past of each sequence, of one layer."""
    nodes, width = sources.shape[1:]
    _commit_kernel[(slots.shape[0], triton.cdiv(channels.shape[1], _BLOCK))](
        channels, past, slots, sources, last, channels.stride(0), NODES=nodes, NUM=channels.shape[1], WIDTH=width,
        TAPS=triton.next_power_of_2(width), BLOCK=_BLOCK,
    )  # fmt: skip


def _grid(channels: Tensor) -> tuple[int, int]:
    return channels.shape[0], triton.cdiv(channels.shape[1], _BLOCK)


def _widths(weight: Tensor) -> dict[str, int]:
    width = weight.shape[1]
    return {"WIDTH": width, "TAPS": triton.next_power_of_2(width), "BLOCK": _BLOCK}
