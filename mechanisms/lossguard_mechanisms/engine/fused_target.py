"""A target for accelerators: what lies between matrix products is compiled into few kernels.

The pieces are the sublayers' own arithmetic with the weights given as arguments, so that one compilation serves all
layers of a kind. Compiled code may round less often than ``Target`` (intermediate results stay in float32).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lossguard_mechanisms.targets.decoder import DecoderLayer, StepOutput, Target
from lossguard_mechanisms.targets.layers import Attention, Delta
from lossguard_mechanisms.targets.mixing import DeltaInputs, Mixing
from lossguard_mechanisms.targets.rotary import rotary_of


class FusedTarget:
    """Serves as ``Target`` does (``engine.model.ServedModel``); shapes are compiled as they come."""

    def __init__(self, target: Target, *, is_compiled: bool = True) -> None:
        self.config = target.config
        self._target = target
        self._layers = [layer for layer in target.layers if isinstance(layer, DecoderLayer)]
        compiled: Callable[[Any], Any] = (
            (lambda piece: torch.compile(piece, dynamic=True, fullgraph=True)) if is_compiled else _as_is
        )
        self._before_attention = compiled(before_attention)
        self._after_attention = compiled(after_attention)
        self._before_delta = compiled(before_delta)
        self._rule_inputs = compiled(rule_inputs)
        self._after_delta = compiled(after_delta)
        self._norm = compiled(final_norm)

    def __call__(self, ids: Tensor, positions: Tensor, mixing: Mixing, *, capture: Sequence[int] = ()) -> StepOutput:
        """Run N rows, see ``Target.forward``."""
        config = self.config
        x = functional.embedding(ids, self._target.embedding.weight)
        rotary = rotary_of(positions, dim=config.rotary_dim, theta=config.rope_theta, dtype=x.dtype)
        kept: dict[int, Tensor] = {}
        for index, layer in enumerate(self._layers):
            if isinstance(layer.mixer, Attention):
                query, gate, key, value = self._before_attention(layer, x, rotary.cosines, rotary.sines)
                x = self._after_attention(layer, x, mixing.attend(index, query, key, value), gate)
            else:
                x = self._run_delta(index, layer, x, mixing)
            if index in capture:
                kept[index] = x
        return StepOutput(hidden=self._norm(self._target.norm, x), features=tuple(kept[index] for index in capture))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, vocabulary]."""
        return self._target.logits(hidden)

    def _run_delta(self, index: int, layer: DecoderLayer, x: Tensor, mixing: Mixing) -> Tensor:
        assert isinstance(layer.mixer, Delta), "a layer mixes by attention or by the delta rule"
        channels, gate, beta, decay = self._before_delta(layer, x)
        convolved = mixing.convolve(index, channels, layer.mixer.conv)
        query, key, value, log_decay, rate = self._rule_inputs(layer.mixer, convolved, beta, decay)
        inputs = DeltaInputs(query=query, key=key, value=value, log_decay=log_decay, beta=rate)
        result: Tensor = self._after_delta(layer, x, mixing.recur(index, inputs), gate)
        return result


def _as_is(piece: Any) -> Any:
    return piece


def before_attention(layer: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, gate, key and value of rows [N, hidden], normed and turned."""
    mixer = layer.mixer
    query, gate, key, value = mixer.in_proj(layer.mixer_norm(x)).split(mixer.sizes, dim=-1)
    query, key, value = (part.unflatten(-1, (-1, mixer.head_dim)) for part in (query, key, value))
    query = _turn(mixer.query_norm(query), cosines, sines)
    return query, gate, _turn(mixer.key_norm(key), cosines, sines), value


def after_attention(layer: Any, x: Tensor, mixed: Tensor, gate: Tensor) -> Tensor:
    """The layer's output from what attention mixed [N, heads, head_dim]."""
    mixed = mixed.flatten(-2)
    x = x + layer.mixer.out_proj(mixed * torch.sigmoid(gate) if gate.shape[-1] else mixed)
    added: Tensor = x + layer.mlp(layer.mlp_norm(x))
    return added


def before_delta(layer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Channels of the convolution, gate, beta and decay of rows [N, hidden]."""
    channels, gate, beta, decay = layer.mixer.in_proj(layer.mixer_norm(x)).split(layer.mixer.sizes, dim=-1)
    return channels, gate, beta, decay


def rule_inputs(mixer: Any, convolved: Tensor, beta: Tensor, decay: Tensor) -> tuple[Tensor, ...]:
    """The fields of ``DeltaInputs``."""
    inputs = mixer.rule_inputs(convolved, beta, decay)
    return inputs.query, inputs.key, inputs.value, inputs.log_decay, inputs.beta


def after_delta(layer: Any, x: Tensor, mixed: Tensor, gate: Tensor) -> Tensor:
    """The layer's output from what the rule gave [N, value heads, value_dim]."""
    mixer = layer.mixer
    x = x + mixer.out_proj(mixer.norm(mixed, gate.unflatten(-1, (-1, mixer.shape.value_dim))).flatten(-2))
    added: Tensor = x + layer.mlp(layer.mlp_norm(x))
    return added


def final_norm(norm: Any, x: Tensor) -> Tensor:
    """What the head reads."""
    normed: Tensor = norm(x)
    return normed


def _turn(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """As ``Rotary.apply``."""
    half = cosines.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = first * cosines - second * sines, second * cosines + first * sines
    return torch.cat((*turned, rest), dim=-1) if rest.shape[-1] else torch.cat(turned, dim=-1)
