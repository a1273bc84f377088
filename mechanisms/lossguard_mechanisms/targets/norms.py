"""Norms over the last dimension, in float32 (float64 for float64 input), rounded where transformers does."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def widen(x: Tensor) -> Tensor:
    """The tensor in float32; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()


def _unit_mean_square(x: Tensor, epsilon: float) -> Tensor:
    wide = widen(x)
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)


class RootMeanSquareNorm(nn.Module):
    """Root mean square norm with a weight.

    A centred weight is added to one and applied before the rounding (Qwen3-Next, Qwen3.5); else it is applied after
    it (Llama, Qwen3).
    """

    def __init__(self, size: int, *, epsilon: float, is_centred: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if is_centred else torch.ones(size))
        self.epsilon = epsilon
        self.is_centred = is_centred

    def forward(self, x: Tensor) -> Tensor:
        """Norm of ``x`` [..., size], same shape and dtype."""
        normed = _unit_mean_square(x, self.epsilon)
        if self.is_centred:
            return (normed * (1.0 + widen(self.weight))).to(x.dtype)
        return self.weight * normed.to(x.dtype)


class GatedNorm(nn.Module):
    """Root mean square norm, then its weight, then a SiLU gate in float32: the end of a delta layer."""

    def __init__(self, size: int, *, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Norm of ``x`` [..., size] gated by ``gate`` of the same shape; dtype of ``x``."""
        weighted = self.weight * _unit_mean_square(x, self.epsilon).to(x.dtype)
        return (weighted * functional.silu(widen(gate))).to(x.dtype)
