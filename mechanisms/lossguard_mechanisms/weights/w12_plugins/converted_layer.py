"""What a server keeps of a layer: W12 in place of its dense weights, and a record that every such layer has multiplied.

The dense weights are deleted, so nothing can multiply with them by mistake: a path that does not know W12 fails.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lossguard_kernels.w12_gemm.operation import w12_linear
from lossguard_mechanisms.weights.w12.fused_linear import FusedW12Linear
from lossguard_mechanisms.weights.w12.linear import W12Linear
from lossguard_mechanisms.weights.w12.policy import decide
from lossguard_mechanisms.weights.w12.w12_tensor import W12Tensor
from lossguard_mechanisms.weights.w12_plugins.failures import nothing_converted

NAME = "w12"
"""The name of the quantization in every engine, and the attribute of a layer that holds its weights."""


@dataclass(slots=True)
class RollCall:
    """Which layers of a model were converted, which were left and why, and which have not multiplied yet."""

    log: logging.Logger
    num_weights: int = 0
    num_bytes: int = 0
    num_converted: int = 0
    left: dict[str, str] = field(default_factory=dict)
    _waiting: set[int] = field(default_factory=set)

    def converted(self, layer: nn.Module, coded: W12Tensor) -> None:
        """Note a layer that has W12 now."""
        self.num_converted += 1
        self.num_weights += coded.layout.num_weights
        self.num_bytes += coded.num_bytes
        self._waiting.add(id(layer))

    def present(self, layer: nn.Module) -> None:
        """Note that a layer has multiplied; says so once, when the last of them has. Raises UsageError LG1216."""
        if not self.num_converted:  # all are loaded before the first multiplies
            raise nothing_converted(self.left)
        if not self._waiting:
            return
        self._waiting.discard(id(layer))
        if not self._waiting:
            self.log.info("lossguard w12: %s; every one has multiplied", self)

    def __str__(self) -> str:
        """One line for logs."""
        bits = 8 * self.num_bytes / max(1, self.num_weights)
        reasons = "; ".join(f"{name} ({reason})" for name, reason in self.left.items())
        left = f", left in bf16: {reasons}" if reasons else ""
        return f"{self.num_converted} layers, {self.num_weights:,} weights, {bits:.3f} bits each{left}"


def convert_layer(layer: nn.Module, roll: RollCall) -> None:
    """Replace ``layer.weight`` [outputs, inputs], bf16, by W12 where the format fits it; others stay, with a reason."""
    weight = cast("Tensor", layer.weight)
    decision = decide(weight)
    if decision.coded is None:
        roll.left[getattr(layer, "prefix", f"{type(layer).__name__} {len(roll.left)}")] = decision.reason
        return
    converted = _compact(FusedW12Linear(decision.coded)) if weight.is_cuda else W12Linear(decision.coded)
    setattr(layer, NAME, converted)
    del layer.weight, weight
    roll.converted(layer, decision.coded)


def _compact(layer: FusedW12Linear) -> FusedW12Linear:
    """Move buffers to memory of their own: in holes that conversion leaves, they would hold on to larger pieces."""
    torch.cuda.empty_cache()
    copies = {name: buffer.clone() for name, buffer in layer.named_buffers()}  # all before any original is freed
    for name, copy in copies.items():
        layer.register_buffer(name, copy)
    torch.cuda.synchronize()  # products fetch weights before the kernel ahead of them has ended
    torch.cuda.empty_cache()
    return layer


def multiply(layer: nn.Module, inputs: Tensor, bias: Tensor | None, roll: RollCall) -> Tensor:
    """``inputs`` [..., inputs] in bf16 -> [..., outputs]; on a GPU by ``lossguard::w12_linear``, else decoded first.

    Raises UsageError LG1216 if no layer of the model was converted, LG1704.
    """
    converted = getattr(layer, NAME, None)
    if not torch.compiler.is_compiling():
        roll.present(layer)
    if isinstance(converted, FusedW12Linear):
        return w12_linear(inputs, converted.packed, bias)
    return linear(inputs, cast("Tensor", (layer if converted is None else converted).weight), bias)
