"""Grouped attention over padded keys, with the rows of a group folded together so that a key is read once."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def grouped_attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    """Attention of T rows over S keys, of B sequences.

    ``query`` [B, T, heads, dim], ``key`` and ``value`` [B, S, key heads, dim], ``visible`` [B, T, S] (bool, at least
    one key per row). Query head h reads key head ``h // (heads // key heads)``. Returns [B, T, heads, dim].
    """
    batch, length, heads, dim = query.shape
    groups = heads // key.shape[2]
    folded = query.unflatten(2, (-1, groups)).permute(0, 2, 3, 1, 4).flatten(2, 3)  # [B, key heads, groups * T, dim]
    mask = visible.repeat(1, groups, 1)[:, None]
    mixed = functional.scaled_dot_product_attention(folded, key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask)
    return mixed.reshape(batch, -1, groups, length, dim).permute(0, 3, 1, 2, 4).flatten(2, 3)
