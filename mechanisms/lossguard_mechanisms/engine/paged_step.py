"""What kernels of paged attention read of a step, apart from the kernels, which need triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MOST_OWN_ROWS = 64  # bits of a word


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedStep:
    """Tensors of a step that are the same for all layers; B sequences of T rows each."""

    table: Tensor  # [B, P] int64
    past_lengths: Tensor  # [B] int64
    bits: Tensor  # [B, T] int64: bit j of row t says that it sees the step's own row j
    writes: Tensor  # [B * T * key heads] int64, see ``pages.PageLayout``


def own_bits(ancestors: Tensor | None, *, batch: int, own: int, device: torch.device) -> Tensor:
    """[B, T] int64 from ``ancestors`` [B, T, T]; None: every row sees those up to itself."""
    powers = torch.ones((), dtype=torch.int64, device=device) << torch.arange(own, device=device)
    if ancestors is None:
        return powers.cumsum(0).expand(batch, own).contiguous()
    return (ancestors * powers).sum(-1)
