"""The three kinds of sublayers. Projections that read the same input are one matrix: fewer and larger products."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from lossguard_mechanisms.targets.config import DeltaShape, TargetConfig
from lossguard_mechanisms.targets.mixing import DeltaInputs, Mixing
from lossguard_mechanisms.targets.norms import GatedNorm, RootMeanSquareNorm, widen
from lossguard_mechanisms.targets.rotary import Rotary


class Attention(nn.Module):
    """Grouped attention; in hybrids each head's output is gated by a sigmoid of its own projection."""

    def __init__(self, config: TargetConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        query = config.num_attention_heads * config.head_dim
        key = config.num_key_value_heads * config.head_dim
        self.sizes = (query, query if config.family.is_hybrid else 0, key, key)
        self.in_proj = nn.Linear(config.hidden_size, sum(self.sizes), bias=False)  # rows: query, gate, key, value
        self.out_proj = nn.Linear(query, config.hidden_size, bias=False)
        self.query_norm = self._head_norm(config)
        self.key_norm = self._head_norm(config)

    @staticmethod
    def _head_norm(config: TargetConfig) -> nn.Module:
        if not config.family.has_query_key_norm:
            return nn.Identity()
        is_centred = config.family.is_hybrid
        return RootMeanSquareNorm(config.head_dim, epsilon=config.rms_norm_eps, is_centred=is_centred)

    def forward(self, x: Tensor, rotary: Rotary, mixing: Mixing) -> Tensor:
        """Rows [N, hidden] to rows [N, hidden]."""
        query, gate, key, value = self.in_proj(x).split(self.sizes, dim=-1)
        query, key, value = (part.unflatten(-1, (-1, self.head_dim)) for part in (query, key, value))
        query = rotary.apply(self.query_norm(query))
        key = rotary.apply(self.key_norm(key))
        mixed = mixing.attend(self.layer, query, key, value).flatten(-2)
        projected: Tensor = self.out_proj(mixed * torch.sigmoid(gate) if gate.shape[-1] else mixed)
        return projected


class Delta(nn.Module):
    """Gated DeltaNet: a short convolution, the gated delta rule with log decays in float32, a gated norm."""

    def __init__(self, config: TargetConfig, layer: int) -> None:
        super().__init__()
        assert config.delta is not None, "a config with delta layers has their sizes"
        shape: DeltaShape = config.delta
        self.layer = layer
        self.shape = shape
        heads = shape.num_value_heads
        self.sizes = (shape.conv_channels, shape.value_channels, heads, heads)
        self.in_proj = nn.Linear(config.hidden_size, sum(self.sizes), bias=False)  # rows: q k v, gate z, beta, decay
        self.conv = nn.Parameter(torch.zeros(shape.conv_channels, shape.conv_width))
        self.decay_log = nn.Parameter(torch.zeros(heads, dtype=torch.float32))
        self.decay_bias = nn.Parameter(torch.ones(heads, dtype=torch.float32))
        self.norm = GatedNorm(shape.value_dim, epsilon=config.rms_norm_eps)
        self.out_proj = nn.Linear(shape.value_channels, config.hidden_size, bias=False)

    def forward(self, x: Tensor, rotary: Rotary, mixing: Mixing) -> Tensor:
        """Rows [N, hidden] to rows [N, hidden]; positions come from the recurrence, not from ``rotary``."""
        channels, gate, beta, decay = self.in_proj(x).split(self.sizes, dim=-1)
        inputs = self.rule_inputs(mixing.convolve(self.layer, channels, self.conv), beta, decay)
        normed = self.norm(mixing.recur(self.layer, inputs), gate.unflatten(-1, (-1, self.shape.value_dim)))
        projected: Tensor = self.out_proj(normed.flatten(-2))
        return projected

    def rule_inputs(self, convolved: Tensor, beta: Tensor, decay: Tensor) -> DeltaInputs:
        shape = self.shape
        query, key, value = convolved.split((shape.key_channels, shape.key_channels, shape.value_channels), dim=-1)
        return DeltaInputs(
            query=query.unflatten(-1, (-1, shape.key_dim)),
            key=key.unflatten(-1, (-1, shape.key_dim)),
            value=value.unflatten(-1, (-1, shape.value_dim)),
            log_decay=-widen(self.decay_log).exp() * functional.softplus(widen(decay) + self.decay_bias),
            beta=beta.sigmoid(),  # rounded to the model's dtype, as the released engines do
        )


class GatedMlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.in_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)  # rows: gate, up
        self.out_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rows [N, hidden] to rows [N, hidden]."""
        gate, up = self.in_proj(x).chunk(2, dim=-1)
        projected: Tensor = self.out_proj(functional.silu(gate) * up)
        return projected
