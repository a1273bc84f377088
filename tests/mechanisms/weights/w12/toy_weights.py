"""Weights that are as trained ones, or hard on the format."""

from __future__ import annotations

import torch
from torch import Tensor


def bf16_of(patterns: Tensor) -> Tensor:
    """bf16 weights from bit patterns 0 to 65,535."""
    return patterns.to(torch.int32).to(torch.int16).view(torch.bfloat16)


def patterns_of(weight: Tensor) -> list[list[int]]:
    """Rows of bit patterns 0 to 65,535."""
    bits = weight.reshape(-1, weight.shape[-1]).view(torch.int16).to(torch.int32) & 0xFFFF
    rows: list[list[int]] = bits.tolist()
    return rows


def gaussian(*shape: int, seed: int = 0, scale: float = 0.02) -> Tensor:
    """Weights as a trained layer has them."""
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(torch.bfloat16)


def golden_tensors() -> dict[str, Tensor]:
    """What ``fixtures/w12-format`` holds: integers alone, so that every version of every library makes the same."""
    index = torch.arange(47 * 203)
    noise = (index * 48271 + 11) * 69621 % 2147483647
    exponent = 118 - (noise % 4096 + 1).log2().floor().to(torch.int64) // 2 + index // 203 % 5 * 4
    rows = ((noise >> 13) & 1) << 15 | exponent << 7 | (noise >> 16) & 0x7F
    rows[index % 211 == 0] = 0
    rows[index % 307 == 1] = 0x8000
    special = torch.tensor([0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 0x0001, 0x807F, 0x0080, 0x7F7F, 0x3FF0, 0xC2F7])
    rows[5:9505:950] = special
    narrow = 0x3C00 + index[:2048] * 7 % 0x500
    return {
        "narrow.weight": bf16_of(narrow).view(16, 128),
        "rows.weight": bf16_of(rows).view(47, 203),
        "rows.bias": bf16_of(rows[:47].clone()),
        "wild": bf16_of(index[:512] * 128 % 65536).view(2, 4, 64),
        "scale": torch.tensor(0.25),
    }
