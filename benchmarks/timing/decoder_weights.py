"""A Qwen3-shaped decoder with random weights, and one decode step of it, without a host in the loop.

Only its time is of interest: bytes and launches are those of the real model, values are noise. Shapes: B rows,
D hidden, H query heads, G key/value heads, E head dimension, P positions of the cache, V ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

SHAPES: Mapping[str, Mapping[str, int]] = {
    "qwen3-8b": {
        "num_layers": 36,
        "hidden": 4096,
        "intermediate": 12_288,
        "num_heads": 32,
        "num_kv_heads": 8,
        "head_dim": 128,
        "vocab": 151_936,
    },
    "tiny": {
        "num_layers": 2,
        "hidden": 64,
        "intermediate": 128,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "vocab": 512,
    },
}
EPSILON = 1e-6
ROPE_BASE = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a decoder."""

    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int

    @classmethod
    def named(cls, name: str) -> Shape:
        """The shape of that name; KeyError if there is none."""
        return cls(**SHAPES[name])

    @property
    def qkv_width(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of one layer, bf16, [outputs, inputs]."""

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor


class Decoder:
    """Random weights and a static cache; ``step`` reads and writes tensors in place, so a graph can hold it."""

    def __init__(self, shape: Shape, *, num_rows: int, num_positions: int, device: str) -> None:
        self.shape = shape
        generator = torch.Generator(device=device).manual_seed(1)
        make: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}

        def weight(*size: int) -> Tensor:
            return torch.empty(*size, **make).normal_(std=0.02, generator=generator)

        heads_width = shape.num_heads * shape.head_dim
        self.embedding = weight(shape.vocab, shape.hidden)
        self.head = weight(shape.vocab, shape.hidden)
        self.layers = [
            Layer(
                qkv=weight(shape.qkv_width, shape.hidden),
                out=weight(shape.hidden, heads_width),
                gate_up=weight(2 * shape.intermediate, shape.hidden),
                down=weight(shape.hidden, shape.intermediate),
            )
            for _ in range(shape.num_layers)
        ]
        cache = (shape.num_layers, num_rows, shape.num_kv_heads, num_positions, shape.head_dim)
        self.keys, self.values = torch.zeros(*cache, **make), torch.zeros(*cache, **make)
        self.norm_hidden = torch.ones(shape.hidden, **make)
        self.norm_head = torch.ones(shape.head_dim, **make)
        self.cosine, self.sine = _rotary(shape.head_dim, num_positions, device)
        self.positions = torch.arange(num_positions, device=device)

    def next_ids(self, ids: Tensor, position: Tensor) -> Tensor:
        """Greedy ids [B] after ``ids`` [B] at ``position`` [1], which all rows share."""
        hidden = self.embedding[ids]
        mask = (self.positions <= position)[None, None, None, :]
        for index, layer in enumerate(self.layers):
            hidden = hidden + self._attention(index, layer, self._norm(hidden), (position, mask))
            gate, up = F.linear(self._norm(hidden), layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + F.linear(F.silu(gate) * up, layer.down)
        return F.linear(self._norm(hidden), self.head).argmax(dim=-1)

    def num_weight_bytes(self) -> int:
        """Bytes that one step must read at the least: every weight once but the embedding."""
        tensors = [getattr(layer, field.name) for layer in self.layers for field in fields(layer)]
        return sum(tensor.numel() * tensor.element_size() for tensor in (*tensors, self.head))

    def _norm(self, hidden: Tensor) -> Tensor:
        return F.rms_norm(hidden, (self.shape.hidden,), self.norm_hidden, EPSILON)

    def _attention(self, index: int, layer: Layer, hidden: Tensor, place: tuple[Tensor, Tensor]) -> Tensor:
        position, mask = place
        shape, num_rows = self.shape, hidden.shape[0]
        qkv = F.linear(hidden, layer.qkv).view(num_rows, -1, shape.head_dim)
        query, key, value = qkv.split((shape.num_heads, shape.num_kv_heads, shape.num_kv_heads), dim=1)
        query, key = (
            self._rotated(F.rms_norm(part, (shape.head_dim,), self.norm_head, EPSILON), position)
            for part in (query, key)
        )
        self.keys[index].index_copy_(2, position, key.unsqueeze(2))
        self.values[index].index_copy_(2, position, value.unsqueeze(2))
        attended = F.scaled_dot_product_attention(
            query.unsqueeze(2), self.keys[index], self.values[index], attn_mask=mask, enable_gqa=True
        )
        return F.linear(attended.reshape(num_rows, -1), layer.out)

    def _rotated(self, part: Tensor, position: Tensor) -> Tensor:
        cosine, sine = self.cosine[position], self.sine[position]
        first, second = part.chunk(2, dim=-1)
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def _rotary(head_dim: int, num_positions: int, device: str) -> tuple[Tensor, Tensor]:
    """Cosine and sine tables [P, E / 2] in bf16."""
    exponents = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    angles = torch.arange(num_positions, device=device, dtype=torch.float32)[:, None] / ROPE_BASE**exponents
    return angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)
