"""Rotary positions over the first ``dim`` dimensions of a head, halves paired (i with i + dim / 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Cosines and sines of a step's rows, each [N, 1, dim / 2]."""

    cosines: Tensor
    sines: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Turn ``x`` [N, heads, head_dim]; dimensions past the rotary ones stay."""
        half = self.cosines.shape[-1]
        first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        turned = first * self.cosines - second * self.sines, second * self.cosines + first * self.sines
        return torch.cat((*turned, rest), dim=-1) if rest.shape[-1] else torch.cat(turned, dim=-1)


def rotary_of(positions: Tensor, *, dim: int, theta: float, dtype: torch.dtype) -> Rotary:
    """Tables for ``positions`` [N], computed in float32 and rounded to ``dtype``."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=positions.device) / dim
    angles = positions.float()[:, None, None] * (1.0 / theta**exponents)
    return Rotary(cosines=angles.cos().to(dtype), sines=angles.sin().to(dtype))
