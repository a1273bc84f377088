"""Slow references: token by token, one sequence, in the dtype that the caller chooses.

Nothing here is shared with the fast forms: a difference between the two is a fault of one of them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lossguard_mechanisms.targets.mixing import DeltaInputs


def recur_by_token(inputs: DeltaInputs, state: Tensor | None, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The gated delta rule as it is written (``gated_delta``), head by head and token by token.

    Inputs lead with [T]; ``state`` [value heads, key_dim, value_dim] or None for zeros. Returns outputs
    [T, value heads, value_dim] and the last state, both in ``dtype``.
    """
    num_tokens, num_heads, value_dim = inputs.value.shape
    key_dim = inputs.key.shape[-1]
    groups = num_heads // inputs.key.shape[1]
    zeros = torch.zeros(num_heads, key_dim, value_dim, dtype=dtype)
    states = zeros if state is None else state.to(dtype).clone()
    outputs = torch.zeros(num_tokens, num_heads, value_dim, dtype=dtype)
    for token in range(num_tokens):
        for head in range(num_heads):
            query = _unit(inputs.query[token, head // groups].to(dtype)) / math.sqrt(key_dim)
            key = _unit(inputs.key[token, head // groups].to(dtype))
            decayed = states[head] * math.exp(float(inputs.log_decay[token, head]))
            error = inputs.value[token, head].to(dtype) - key @ decayed
            states[head] = decayed + torch.outer(key, float(inputs.beta[token, head]) * error)
            outputs[token, head] = query @ states[head]
    return outputs, states


def convolve_by_token(channels: Tensor, weight: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Causal convolution per channel and SiLU of a whole sequence [T, C] with ``weight`` [C, width]."""
    width = weight.shape[1]
    outputs = torch.zeros(channels.shape, dtype=dtype)
    for token in range(channels.shape[0]):
        for tap in range(width):
            source = token - (width - 1) + tap
            if source >= 0:
                outputs[token] += channels[source].to(dtype) * weight[:, tap].to(dtype)
    return outputs * torch.sigmoid(outputs)


def attend_by_token(query: Tensor, key: Tensor, value: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Attention of a whole sequence, head by head: [T, heads, dim] over [T, key heads, dim]."""
    num_tokens, num_heads, head_dim = query.shape
    groups = num_heads // key.shape[1]
    outputs = torch.zeros(query.shape, dtype=dtype)
    for token in range(num_tokens):
        for head in range(num_heads):
            keys = key[: token + 1, head // groups].to(dtype)
            scores = keys @ query[token, head].to(dtype) / math.sqrt(head_dim)
            weights = (scores - scores.max()).exp()
            outputs[token, head] = weights @ value[: token + 1, head // groups].to(dtype) / weights.sum()
    return outputs


class NaiveMixing:
    """A ``Mixing`` of one sequence that keeps all inputs and begins at the first token again in every step."""

    def __init__(self, *, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._kept: dict[tuple[int, str], Tensor] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See ``Mixing``."""
        everything = [self._keep(layer, name, x) for name, x in (("q", query), ("k", key), ("v", value))]
        return attend_by_token(*everything, dtype=self._dtype)[-query.shape[0] :].to(query.dtype)

    def convolve(self, layer: int, channels: Tensor, weight: Tensor) -> Tensor:
        """See ``Mixing``."""
        everything = self._keep(layer, "conv", channels)
        return convolve_by_token(everything, weight, dtype=self._dtype)[-channels.shape[0] :].to(channels.dtype)

    def recur(self, layer: int, inputs: DeltaInputs) -> Tensor:
        """See ``Mixing``."""
        everything = DeltaInputs(
            query=self._keep(layer, "query", inputs.query),
            key=self._keep(layer, "key", inputs.key),
            value=self._keep(layer, "value", inputs.value),
            log_decay=self._keep(layer, "log_decay", inputs.log_decay),
            beta=self._keep(layer, "beta", inputs.beta),
        )
        outputs, _ = recur_by_token(everything, None, dtype=self._dtype)
        return outputs[-inputs.value.shape[0] :].to(inputs.value.dtype)

    def _keep(self, layer: int, name: str, x: Tensor) -> Tensor:
        place = layer, name
        self._kept[place] = torch.cat((self._kept[place], x)) if place in self._kept else x
        return self._kept[place]


def _unit(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).sum() + 1e-6)
