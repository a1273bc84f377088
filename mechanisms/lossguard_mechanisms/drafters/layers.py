"""Sublayers of drafters. Rows are flat as in targets; what looks across rows is asked of the caller by ``attend``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from lossguard_mechanisms.drafters.config import DrafterConfig
from lossguard_mechanisms.targets.norms import RootMeanSquareNorm
from lossguard_mechanisms.targets.rotary import Rotary, rotary_of

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Layer, query [N, heads, head_dim], key and value [N, key heads, head_dim] to [N, heads, head_dim]."""

NUM_TAPS = 2
_INPUT_SIDE, _OUTPUT_SIDE = 0, 1


class DrafterAttention(nn.Module):
    """Grouped attention whose keys and values also come from rows that no query is asked of: the context."""

    def __init__(self, config: DrafterConfig, *, input_size: int, output_size: int, epsilon: float) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        wide, narrow = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
        self.query_proj = nn.Linear(input_size, wide, bias=False)
        self.key_value_proj = nn.Linear(input_size, 2 * narrow, bias=False)
        self.out_proj = nn.Linear(wide, output_size, bias=False)
        self.query_norm = RootMeanSquareNorm(config.head_dim, epsilon=epsilon, is_centred=False)
        self.key_norm = RootMeanSquareNorm(config.head_dim, epsilon=epsilon, is_centred=False)

    def query(self, x: Tensor, rotary: Rotary) -> Tensor:
        """Rows [N, input] to queries [N, heads, head_dim], normed and turned."""
        return rotary.apply(self.query_norm(self.query_proj(x).unflatten(-1, (-1, self.head_dim))))

    def key_value(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Rows [N, input] to keys (normed and turned) and values, [N, key heads, head_dim] each."""
        key, value = (part.unflatten(-1, (-1, self.head_dim)) for part in self.key_value_proj(x).chunk(2, dim=-1))
        return rotary.apply(self.key_norm(key)), value

    def forward(self, x: Tensor, rotary: Rotary, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """Rows [N, input] to rows [N, output]."""
        mixed: Tensor = self.out_proj(attend(self.query(x, rotary), *self.key_value(x, rotary)).flatten(-2))
        return mixed


class DrafterMlp(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, wide: int) -> None:
        super().__init__()
        self.in_proj = nn.Linear(hidden, 2 * wide, bias=False)  # rows: gate, up
        self.out_proj = nn.Linear(wide, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rows [N, hidden] to rows [N, hidden]."""
        gate, up = self.in_proj(x).chunk(2, dim=-1)
        projected: Tensor = self.out_proj(functional.silu(gate) * up)
        return projected


class DynamicConvolution(nn.Module):
    """Causal convolution of two taps inside a block, around a sublayer, with weights that the block's rows decide.

    For side s (0: the sublayer's input, 1: its output), tap t and channel c of group g, row j of a block gets
    ``sum_t (base[s, t, c] + dynamic_j[s, t, g]) x_(j-t)[c]``; row 0 has no predecessor. Begins as the identity
    (DFlash2: https://inco.ai/blog/dflash2/).
    """

    def __init__(self, hidden: int, num_groups: int) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.coefficient_proj = nn.Linear(hidden, 2 * NUM_TAPS * num_groups, bias=False)
        base = torch.zeros(2, NUM_TAPS, hidden)
        base[:, 0] = 1.0
        self.base = nn.Parameter(base)

    def forward(self, x: Tensor, block_length: int, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Rows [N, hidden] of blocks, one after the other, through both sides and the sublayer between them."""
        dynamic = self.coefficient_proj(x).view(-1, 2, NUM_TAPS, self.num_groups)
        inputs = self._convolve(_INPUT_SIDE, x, dynamic, block_length)
        return self._convolve(_OUTPUT_SIDE, sublayer(inputs), dynamic, block_length)

    def _convolve(self, side: int, x: Tensor, dynamic: Tensor, block_length: int) -> Tensor:
        before = functional.pad(x.view(-1, block_length, x.shape[-1])[:, :-1], (0, 0, 1, 0)).flatten(0, 1)
        grouped = (rows.unflatten(-1, (self.num_groups, -1)) for rows in (x, before))
        moved = [rows * dynamic[:, side, tap, :, None] for tap, rows in enumerate(grouped)]
        mixed: Tensor = x * self.base[side, 0] + before * self.base[side, 1] + (moved[0] + moved[1]).flatten(-2)
        return mixed


class BlockLayer(nn.Module):
    """Attention from a block's rows to the context and to each other, then the MLP."""

    def __init__(self, config: DrafterConfig, hidden: int, *, epsilon: float) -> None:
        super().__init__()
        self.attention = DrafterAttention(config, input_size=hidden, output_size=hidden, epsilon=epsilon)
        self.mlp = DrafterMlp(hidden, config.intermediate_size)
        self.attention_norm = RootMeanSquareNorm(hidden, epsilon=epsilon, is_centred=False)
        self.mlp_norm = RootMeanSquareNorm(hidden, epsilon=epsilon, is_centred=False)
        convolutions = [DynamicConvolution(hidden, config.conv_groups) for _ in range(2 if config.conv_groups else 0)]
        self.convolutions = nn.ModuleList(convolutions)

    def forward(
        self, x: Tensor, rotary: Rotary, block_length: int, attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Rows [N, hidden] of blocks to rows [N, hidden]."""
        x = x + self._around(0, self.attention_norm(x), block_length, lambda y: self.attention(y, rotary, attend))
        added: Tensor = x + self._around(1, self.mlp_norm(x), block_length, self.mlp)
        return added

    def _around(self, place: int, x: Tensor, block_length: int, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if not self.convolutions:
            return sublayer(x)
        mixed: Tensor = self.convolutions[place](x, block_length, sublayer)
        return mixed


def rotary_for(config: DrafterConfig, positions: Tensor, *, theta: float, dtype: torch.dtype) -> Rotary:
    """Tables over the whole head for ``positions`` [N]."""
    return rotary_of(positions, dim=config.head_dim, theta=theta, dtype=dtype)
