# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernels of the convolution before a delta layer: every node along its path, and the commit of a path.

``sources`` [rows, width] names the column of every tap, oldest first: below width - 1 one of the committed columns,
else node ``source - (width - 1)`` of the same tree. Sums are in float32 and rounded before SiLU.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _columns(channels, past, sources, first, channel, stride, NUM: tl.constexpr, WIDTH: tl.constexpr):  # noqa: PLR0913
    """[channels, taps]; a source of -1 is zero."""
    is_past = (sources >= 0) & (sources < WIDTH - 1)
    is_inside = channel[:, None] < NUM
    old = past + channel[:, None] * (WIDTH - 1) + sources[None, :]
    new = channels + (first + sources[None, :] - (WIDTH - 1)) * stride + channel[:, None]
    earlier = tl.load(old, mask=is_inside & is_past[None, :], other=0.0)
    own = tl.load(new, mask=is_inside & (sources >= WIDTH - 1)[None, :], other=0.0)
    return tl.where(is_past[None, :], earlier.to(tl.float32), own.to(tl.float32))


@triton.jit
def convolve_kernel(  # noqa: PLR0913
    channels, weight, past, firsts, counts, slots, sources, output, stride, NUM: tl.constexpr, WIDTH: tl.constexpr,
    TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: requests, nodes, blocks of channels."""
    request, node = tl.program_id(0), tl.program_id(1)
    if node < tl.load(counts + request):
        channel, taps = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, TAPS)
        first, slot = tl.load(firsts + request), tl.load(slots + request).to(tl.int64)
        found = tl.load(sources + (first + node) * WIDTH + taps, mask=taps < WIDTH, other=-1)
        x = _columns(channels, past + slot * NUM * (WIDTH - 1), found, first, channel, stride, NUM, WIDTH)
        is_tap = (channel[:, None] < NUM) & (taps < WIDTH)[None, :]
        w = tl.load(weight + channel[:, None] * WIDTH + taps, mask=is_tap, other=0.0)
        mixed = tl.sum(x * w.to(tl.float32), 1)
        rounded = mixed.to(output.dtype.element_ty).to(tl.float32)
        out = (rounded * tl.sigmoid(rounded)).to(output.dtype.element_ty)
        tl.store(output + (first + node) * NUM + channel, out, mask=channel < NUM)


@triton.jit
def commit_convolution_kernel(  # noqa: PLR0913
    channels, past, firsts, last, slots, sources, num_requests, num_slots, layer_stride, stride, NUM: tl.constexpr,
    WIDTH: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: layers * requests, blocks of channels. The last node's window less its oldest column becomes the past."""
    request = tl.program_id(0) % num_requests
    layer = (tl.program_id(0) // num_requests).to(tl.int64)
    end_node, first = tl.load(last + request), tl.load(firsts + request)
    if end_node >= 0:
        channel, taps = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, TAPS)
        slot = tl.load(slots + request).to(tl.int64)
        is_kept = (taps > 0) & (taps < WIDTH)
        found = tl.load(sources + (first + end_node) * WIDTH + taps, mask=is_kept, other=-1)
        own = past + (layer * num_slots + slot) * NUM * (WIDTH - 1)
        x = _columns(channels + layer * layer_stride, own, found, first, channel, stride, NUM, WIDTH)
        tl.debug_barrier()  # all of the past is read before any of it changes
        place = own + channel[:, None] * (WIDTH - 1) + taps - 1
        tl.store(place, x.to(past.dtype.element_ty), mask=(channel[:, None] < NUM) & is_kept[None, :])
