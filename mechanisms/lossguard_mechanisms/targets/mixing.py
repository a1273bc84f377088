"""The border between a target's weights and its memory.

A step runs N rows (tokens) through the weights. Whatever looks at more than one row, or at rows of earlier steps, is
asked of a ``Mixing``: prefill, decode, verification of a tree and training differ in nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaInputs:
    """Inputs of the gated delta rule; leading dimensions are the same for all (here written as [N]).

    Queries and keys are neither normalised nor scaled yet: the rule does that in float32.
    """

    query: Tensor  # [N, key heads, key_dim]
    key: Tensor  # [N, key heads, key_dim]
    value: Tensor  # [N, value heads, value_dim]
    log_decay: Tensor  # [N, value heads], float32, at most 0
    beta: Tensor  # [N, value heads]


class Mixing(Protocol):
    """What one step does across rows. ``layer`` counts all layers of the target from 0.

    Each method is called once per layer and step, in the order of the layers. Results have the rows, order and dtype
    of their inputs.
    """

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Keep ``key`` and ``value`` [N, key heads, head_dim]; attend from ``query`` [N, heads, head_dim].

        Queries and keys come turned by their positions.
        """

    def convolve(self, layer: int, channels: Tensor, weight: Tensor) -> Tensor:
        """Causal convolution of ``channels`` [N, C] per channel with ``weight`` [C, width], then SiLU."""

    def recur(self, layer: int, inputs: DeltaInputs) -> Tensor:
        """The gated delta rule; returns [N, value heads, value_dim]."""
