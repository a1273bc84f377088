"""Weights that are hard on the kernels, and how close a product must come."""

from __future__ import annotations

import torch
from torch import Tensor

from lossguard_kernels.w12_gemm.weights import KernelWeights
from lossguard_mechanisms.weights.w12.codec import encode

_BF16_STEP, _FLOAT32_STEP = 2.0**-8, 2.0**-23


def gaussian(rows: int, columns: int, *, seed: int = 0) -> Tensor:
    """bf16 weights as a trained layer has them."""
    noise = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    return (noise * 0.02).to(torch.bfloat16)


def wild(rows: int, columns: int, *, seed: int = 1) -> Tensor:
    """Many escapes, rows of very different size, zeros of both signs, subnormals."""
    weights = gaussian(rows, columns, seed=seed)
    weights[::3, ::7] *= 2.0**17
    weights[1::5] *= 2.0**-20
    weights[2::9] = 0.0
    weights[:, 3::11] = -0.0
    weights[rows // 2, ::2] = 2.0**-130
    return weights


def packed(weights: Tensor, device: str = "cpu") -> KernelWeights:
    """For the kernels, on a device."""
    return KernelWeights.pack(encode(weights.to(device)))


def activations(m: int, columns: int, *, seed: int = 2) -> Tensor:
    """bf16 [m, columns]."""
    return torch.randn(m, columns, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def assert_product(found: Tensor, x: Tensor, weights: Tensor) -> None:
    """Every output is the exact one but for sums in float32 and one rounding to bf16."""
    expected, size = x.double() @ weights.double().T, x.double().abs() @ weights.double().abs().T
    allowed = _BF16_STEP * expected.abs() + 64 * _FLOAT32_STEP * size + 1e-30
    wrong = ~((found.double() - expected).abs() <= allowed)
    assert not bool(wrong.any()), (
        f"{int(wrong.sum())} of {wrong.numel()} outputs, the first at {wrong.nonzero()[0].tolist()}"
    )
