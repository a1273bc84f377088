"""A target's weights laid out for bfloat16 matrix products on a CPU, and a forward pass of few operations.

At a few rows per step torch rearranges every weight matrix at every call, which costs about as much as the product, and
each small operation costs more than its arithmetic. Here weights lie in oneDNN's own layout, and what follows a product
element by element (SiLU, the product with the gate, the residual sum) is done inside it, in float32 before rounding.
Weights are the same bit for bit; intermediate results are rounded less often than by ``Target``, never more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lossguard_mechanisms.targets.decoder import DecoderLayer, StepOutput, Target
from lossguard_mechanisms.targets.layers import Attention, Delta
from lossguard_mechanisms.targets.mixing import Mixing
from lossguard_mechanisms.targets.norms import RootMeanSquareNorm

_OPERATORS: Any = torch.ops.mkldnn


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A weight matrix in oneDNN's layout; inputs are bfloat16 [N, in], results [N, out]."""

    weight: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> PackedMatrix:
        """Pack ``weight`` [out, in]; the original can be dropped."""
        return cls(_OPERATORS._reorder_linear_weight(weight.detach().contiguous()))

    def apply(self, x: Tensor) -> Tensor:
        """The product."""
        result: Tensor = _OPERATORS._linear_pointwise(x, self.weight, None, "none", [], "")
        return result

    def apply_silu(self, x: Tensor) -> Tensor:
        """SiLU of the product."""
        result: Tensor = _OPERATORS._linear_pointwise(x, self.weight, None, "swish", [], "")
        return result

    def apply_with(self, x: Tensor, other: Tensor, operation: str) -> Tensor:
        """``other`` [N, out] added to or multiplied with the product (``add``, ``mul``)."""
        result: Tensor = _OPERATORS._linear_pointwise.binary(x, other, self.weight, None, operation)
        return result


class PackedNorm:
    """A root mean square norm in one call; rounded once, after the weight, where it is added to one."""

    def __init__(self, norm: RootMeanSquareNorm) -> None:
        self._weight = 1.0 + norm.weight.float() if norm.is_centred else norm.weight
        self._epsilon = norm.epsilon
        self._is_centred = norm.is_centred

    def __call__(self, x: Tensor) -> Tensor:
        """Norm of ``x`` [..., size]."""
        wide = x.float() if self._is_centred else x
        return functional.rms_norm(wide, (x.shape[-1],), self._weight, self._epsilon).to(x.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryTable:
    """Of a step's rows, [N, 1, rotary_dim] in the model's dtype: cosines twice, sines with the sign of the half."""

    cosines: Tensor
    sines: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Turn ``x`` [N, heads, rotary_dim]: halves change places, the second one's sign turns."""
        swapped = torch.roll(x, x.shape[-1] // 2, -1)
        return torch.addcmul(x * self.cosines, swapped, self.sines)


class PackedTarget:
    """Serves as ``Target`` does (``engine.model.ServedModel``), for bfloat16 on a CPU."""

    def __init__(self, target: Target) -> None:
        self.config = target.config
        self._embedding = target.embedding.weight
        self._head = PackedMatrix.of(target.head_weight)
        self._norm = PackedNorm(target.norm)
        self._layers = [_PackedLayer(layer) for layer in target.layers if isinstance(layer, DecoderLayer)]
        config = target.config
        exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim
        self._frequencies = 1.0 / config.rope_theta**exponents

    def __call__(self, ids: Tensor, positions: Tensor, mixing: Mixing, *, capture: Sequence[int] = ()) -> StepOutput:
        """Run N rows, see ``Target.forward``."""
        x = functional.embedding(ids, self._embedding)
        rotary = self._rotary(positions, x.dtype)
        kept: dict[int, Tensor] = {}
        for index, layer in enumerate(self._layers):
            x = layer.run(x, rotary, mixing)
            if index in capture:
                kept[index] = x
        return StepOutput(hidden=self._norm(x), features=tuple(kept[index] for index in capture))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, vocabulary]."""
        return self._head.apply(hidden)

    def _rotary(self, positions: Tensor, dtype: torch.dtype) -> RotaryTable:
        angles = positions.float()[:, None, None] * self._frequencies
        cosines, sines = angles.cos().to(dtype), angles.sin().to(dtype)
        return RotaryTable(cosines=torch.cat((cosines, cosines), -1), sines=torch.cat((-sines, sines), -1))


class _PackedLayer:
    """One decoder layer."""

    def __init__(self, layer: DecoderLayer) -> None:
        mixer = layer.mixer
        assert isinstance(mixer, (Attention, Delta)), "a layer mixes by attention or by the delta rule"
        self._mixer: _PackedAttention | _PackedDelta
        self._mixer = _PackedAttention(mixer) if isinstance(mixer, Attention) else _PackedDelta(mixer)
        self._mixer_norm, self._mlp_norm = PackedNorm(layer.mixer_norm), PackedNorm(layer.mlp_norm)
        gate, up = layer.mlp.in_proj.weight.chunk(2)
        self._gate, self._up = PackedMatrix.of(gate), PackedMatrix.of(up)
        self._down = PackedMatrix.of(layer.mlp.out_proj.weight)

    def run(self, x: Tensor, rotary: RotaryTable, mixing: Mixing) -> Tensor:
        """Rows [N, hidden] to rows [N, hidden]."""
        x = self._mixer.run(self._mixer_norm(x), x, rotary, mixing)
        inner = self._mlp_norm(x)
        gated = self._up.apply_with(inner, self._gate.apply_silu(inner), "mul")
        return self._down.apply_with(gated, x, "add")


class _PackedAttention:
    """See ``targets.layers.Attention``."""

    def __init__(self, mixer: Attention) -> None:
        self._layer, self._head_dim, self._sizes = mixer.layer, mixer.head_dim, mixer.sizes
        self._query_norm, self._key_norm = _head_norm(mixer.query_norm), _head_norm(mixer.key_norm)
        self._num_heads = mixer.sizes[0] // mixer.head_dim
        self._is_plain = self._query_norm is None and not mixer.sizes[1]
        self._in, self._out = PackedMatrix.of(mixer.in_proj.weight), PackedMatrix.of(mixer.out_proj.weight)

    def run(self, x: Tensor, residual: Tensor, rotary: RotaryTable, mixing: Mixing) -> Tensor:
        projected = self._in.apply(x)
        if self._is_plain:
            turned, value = projected.split((self._sizes[0] + self._sizes[2], self._sizes[3]), dim=-1)
            heads = rotary.apply(turned.unflatten(-1, (-1, self._head_dim)))  # queries and keys in one go
            query, key = heads.split((self._num_heads, heads.shape[1] - self._num_heads), dim=1)
            value = value.unflatten(-1, (-1, self._head_dim))
            return self._out.apply_with(mixing.attend(self._layer, query, key, value).flatten(-2), residual, "add")
        query, gate, key, value = projected.split(self._sizes, dim=-1)
        query, key, value = (part.unflatten(-1, (-1, self._head_dim)) for part in (query, key, value))
        if self._query_norm is not None and self._key_norm is not None:
            query, key = self._query_norm(query), self._key_norm(key)
        query, key = self._turned(query, rotary), self._turned(key, rotary)
        mixed = mixing.attend(self._layer, query, key, value).flatten(-2)
        if gate.shape[-1]:
            mixed = mixed * torch.sigmoid(gate)
        return self._out.apply_with(mixed, residual, "add")

    def _turned(self, x: Tensor, rotary: RotaryTable) -> Tensor:
        rotary_dim = rotary.cosines.shape[-1]
        if rotary_dim == self._head_dim:
            return rotary.apply(x)
        return torch.cat((rotary.apply(x[..., :rotary_dim]), x[..., rotary_dim:]), dim=-1)


class _PackedDelta:
    """See ``targets.layers.Delta``, whose rule this calls."""

    def __init__(self, mixer: Delta) -> None:
        self._mixer = mixer
        self._in, self._out = PackedMatrix.of(mixer.in_proj.weight), PackedMatrix.of(mixer.out_proj.weight)

    def run(self, x: Tensor, residual: Tensor, rotary: RotaryTable, mixing: Mixing) -> Tensor:
        mixer = self._mixer
        channels, gate, beta, decay = self._in.apply(x).split(mixer.sizes, dim=-1)
        inputs = mixer.rule_inputs(mixing.convolve(mixer.layer, channels, mixer.conv), beta, decay)
        mixed = mixer.norm(mixing.recur(mixer.layer, inputs), gate.unflatten(-1, (-1, mixer.shape.value_dim)))
        return self._out.apply_with(mixed.flatten(-2), residual, "add")


def _head_norm(norm: nn.Module) -> PackedNorm | None:
    return PackedNorm(norm) if isinstance(norm, RootMeanSquareNorm) else None
