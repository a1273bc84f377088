"""``lossguard::w12_linear``: the product as an operation of torch, for eager code, torch.compile and CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from lossguard_kernels.w12_gemm import naive
from lossguard_kernels.w12_gemm.candidates import Shape
from lossguard_kernels.w12_gemm.choosing import choose
from lossguard_kernels.w12_gemm.failures import wrong_input
from lossguard_kernels.w12_gemm.launching import device_of, launch_decode, launch_gemm, problem_of
from lossguard_kernels.w12_gemm.variants import MAX_M, Launch
from lossguard_kernels.w12_gemm.weights import BAND_ROWS, TILE_COLUMNS, KernelWeights

BACKENDS = ("auto", "fused", "triton", "decode")


def w12_linear(x: Tensor, weights: KernelWeights, bias: Tensor | None = None, *, backend: str = "auto") -> Tensor:
    """``x W^T + bias`` in bf16 for x [..., columns]: [..., rows].

    ``auto`` is the fused kernel for up to 64 rows of x on CUDA, and decode before ``linear`` otherwise. The fused
    kernel adds exact products in float32 and rounds once; its order of summation is fixed for a shape and a launch, so
    results repeat bit for bit. x must be finite where its column holds an escape, and less than 2^63.
    Raises UsageError LG1704.
    """
    assert backend in BACKENDS, f"a backend is one of {BACKENDS}"
    problem = _problem(x, weights, bias)
    if problem is not None:
        raise wrong_input(problem)
    return _apply(x, weights, bias, backend, hi_only=False)


def q_linear(x: Tensor, weights: KernelWeights, bias: Tensor | None = None, *, backend: str = "auto") -> Tensor:
    """The same with the 8-bit plane alone: mantissas cut to three bits, escapes zero. For drafting only."""
    assert backend in BACKENDS, f"a backend is one of {BACKENDS}"
    problem = _problem(x, weights, bias)
    if problem is not None:
        raise wrong_input(problem)
    return _apply(x, weights, bias, backend, hi_only=True)


def decode(weights: KernelWeights, *, hi_only: bool = False) -> Tensor:
    """The bf16 weights [rows, columns], bit for bit; ``hi_only``: what the 8-bit plane alone says of them."""
    if weights.device.type != "cuda":
        return naive.decode_hi(weights) if hi_only else naive.decode(weights)
    dense = torch.empty(weights.rows, weights.columns, dtype=torch.bfloat16, device=weights.device)
    launch_decode(weights, dense, hi_only=hi_only)
    return dense


def _apply(x: Tensor, weights: KernelWeights, bias: Tensor | None, backend: str, *, hi_only: bool) -> Tensor:
    if backend == "auto" and weights.reason_against_fusing is not None:
        backend = "decode"
    flat = x.reshape(-1, weights.columns)
    tensors = list(weights.tensors().values())
    out: Tensor = torch.ops.lossguard.w12_linear(flat, tensors, bias, weights.rows, weights.columns, backend, hi_only)
    return out.view(*x.shape[:-1], weights.rows)


def _problem(x: Tensor, weights: KernelWeights, bias: Tensor | None) -> str | None:
    if x.dtype != torch.bfloat16:
        return f"it is {str(x.dtype).removeprefix('torch.')}"
    if x.dim() == 0 or x.shape[-1] != weights.columns:
        return f"its shape is {list(x.shape)}, the weights have {weights.columns} columns"
    if x.device != weights.device:
        return f"it is on {x.device}, the weights are on {weights.device}"
    if bias is not None and (bias.shape != (weights.rows,) or bias.dtype != torch.bfloat16):
        return f"the bias is {bias.dtype} {list(bias.shape)}, not bfloat16 [{weights.rows}]"
    return None


@torch.library.custom_op("lossguard::w12_linear", mutates_args=())
def _w12_linear(  # noqa: PLR0913
    x: Tensor,
    tensors: Sequence[Tensor],
    bias: Tensor | None,
    rows: int,
    columns: int,
    backend: str,
    hi_only: bool,  # noqa: FBT001  (the schema of an operation has no keywords)
) -> Tensor:
    weights = KernelWeights.of_tensors(tensors, rows=rows, columns=columns)
    if 0 < x.shape[0] <= MAX_M:
        if backend == "triton":
            return _portable_linear(x, weights, bias, hi_only=hi_only)
        if backend == "fused" or (backend == "auto" and x.is_cuda):
            return fused_linear(x, weights, bias, hi_only=hi_only)
    return linear(x, decode(weights, hi_only=hi_only), bias)


@_w12_linear.register_fake
def _(  # noqa: PLR0913
    x: Tensor,
    tensors: Sequence[Tensor],
    bias: Tensor | None,
    rows: int,
    columns: int,
    backend: str,
    hi_only: bool,  # noqa: FBT001
) -> Tensor:
    del tensors, bias, columns, backend, hi_only
    return x.new_empty(x.shape[0], rows)


def fused_linear(
    x: Tensor,
    weights: KernelWeights,
    bias: Tensor | None = None,
    *,
    hi_only: bool = False,
    launch: Launch | None = None,
    overlap: bool = True,
) -> Tensor:
    """The fused kernel for x [m, columns] on CUDA, m from 1 to 64; ``launch`` overrides the choice for the shape."""
    shape = Shape(num_bands=weights.num_bands, num_tiles=weights.num_tiles, m=x.shape[0], hi_only=hi_only)
    index = x.device.index
    used = choose(shape, device_of(index)).launch if launch is None else launch
    whole = _aligned(x, TILE_COLUMNS * weights.num_tiles)
    y = torch.empty(x.shape[0], BAND_ROWS * weights.num_bands, dtype=torch.bfloat16, device=x.device)
    num_partials = used.partial_floats(weights.num_bands)
    partials = torch.empty(num_partials, dtype=torch.float32, device=x.device) if num_partials else None
    problem = problem_of(used, weights, whole, y, partials)
    padded_bias = _whole_bias(bias, weights)
    problem.bias = None if padded_bias is None else padded_bias.data_ptr()
    launch_gemm(used, problem, x.device, overlap=overlap)
    return y if y.shape[1] == weights.rows else y[:, : weights.rows].contiguous()


def _portable_linear(x: Tensor, weights: KernelWeights, bias: Tensor | None, *, hi_only: bool) -> Tensor:
    from lossguard_kernels.w12_gemm.portable import portable_linear  # triton is optional, and slow to import

    whole = pad(x, (0, TILE_COLUMNS * weights.num_tiles - x.shape[1])).contiguous()
    y = portable_linear(whole, weights, _whole_bias(bias, weights), hi_only=hi_only)
    return y[:, : weights.rows].clone(memory_format=torch.contiguous_format)


def _whole_bias(bias: Tensor | None, weights: KernelWeights) -> Tensor | None:
    if bias is None:
        return None
    return pad(bias, (0, BAND_ROWS * weights.num_bands - weights.rows)).contiguous()


def _aligned(x: Tensor, columns: int) -> Tensor:
    """x as the kernel copies it: rows contiguous at multiples of 16 bytes, padded with zeros to whole tiles."""
    if x.shape[1] != columns:
        return pad(x, (0, columns - x.shape[1]))
    if x.stride(1) != 1 or x.stride(0) % 8 or x.data_ptr() % 16:
        return x.contiguous() if x.data_ptr() % 16 == 0 else x.clone(memory_format=torch.contiguous_format)
    return x
