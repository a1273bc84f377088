"""A linear layer that keeps its weights in W12 and decodes them for every product."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lossguard_mechanisms.weights.w12.codec import decode, encode
from lossguard_mechanisms.weights.w12.layout import PARTS
from lossguard_mechanisms.weights.w12.metadata import part_name
from lossguard_mechanisms.weights.w12.policy import decide
from lossguard_mechanisms.weights.w12.w12_tensor import W12Tensor


class W12Linear(nn.Module):
    """``y = x W^T + b`` with W decoded to bf16, bit for bit, and multiplied as ``nn.Linear`` does.

    So the result equals that of ``nn.Linear`` in every bit, at the price of decoding on every call. For inference
    only: the weights have no gradient. Buffers are called ``weight_w12_hi`` and so on, as in the files.
    """

    bias: Tensor | None

    def __init__(self, coded: W12Tensor, bias: Tensor | None = None) -> None:
        """``coded`` [outputs, inputs]; ``bias`` [outputs] is kept as it is."""
        super().__init__()
        assert len(coded.shape) == 2, "a linear layer has a matrix"
        self.out_features, self.in_features = coded.shape
        for name, part in coded.parts().items():
            self.register_buffer(part_name("weight", name), part)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias.detach(), requires_grad=False))

    @classmethod
    def from_linear(cls, layer: nn.Linear) -> W12Linear:
        """Encode a layer's bf16 weights. Raises UsageError LG1201 or LG1202."""
        return cls(encode(layer.weight), layer.bias)

    @property
    def coded(self) -> W12Tensor:
        """The weights as stored."""
        parts = {name: cast("Tensor", getattr(self, part_name("weight", name))) for name in PARTS}
        return W12Tensor(shape=(self.out_features, self.in_features), **parts)

    @property
    def weight(self) -> Tensor:
        """The bf16 weights [outputs, inputs], decoded anew on every access."""
        return decode(self.coded)

    def forward(self, inputs: Tensor) -> Tensor:
        """``inputs`` [..., inputs] in bf16 -> [..., outputs]."""
        return linear(inputs, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Sizes, and what a weight takes."""
        return f"{self.in_features}, {self.out_features}, bits_per_weight={self.coded.bits_per_weight:.3f}"


def replace_linears(model: nn.Module, stored: Mapping[str, W12Tensor] | None = None) -> dict[str, str]:
    """Replace every bf16 ``nn.Linear`` of a model in place; returns why each of the others was left, by its name.

    ``stored`` holds weights that are encoded already, by the name of the parameter; others are encoded here, unless
    ``policy.decide`` keeps them as they are. Layers of subclasses of ``nn.Linear`` are left, since they may do more
    than a product. A weight that is tied to an embedding is kept twice: dense for lookups and in W12 for the product.
    """
    left: dict[str, str] = {}
    for name, parent, child in list(_linears(model)):
        layer = cast("nn.Linear", getattr(parent, child))
        coded, reason = _coded(layer, (stored or {}).get(f"{name}.weight"))
        if coded is None:
            left[name] = reason
        else:
            setattr(parent, child, W12Linear(coded, layer.bias))
    return left


def _coded(layer: nn.Linear, found: W12Tensor | None) -> tuple[W12Tensor | None, str]:
    """(a layer's weights in W12, or None if it stays as it is; why)."""
    reason = _reason_to_leave(layer)
    if reason is not None:
        return None, reason
    if found is not None:
        return found, "as stored"
    decision = decide(layer.weight)
    return decision.coded, decision.reason


def _linears(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Name, parent and attribute of every linear layer."""
    for prefix, parent in model.named_modules():
        for child, layer in parent.named_children():
            if isinstance(layer, nn.Linear):
                yield f"{prefix}.{child}".removeprefix("."), parent, child


def _reason_to_leave(layer: nn.Linear) -> str | None:
    if type(layer) is not nn.Linear:
        return f"it is a {type(layer).__name__}"
    if layer.weight.dtype != torch.bfloat16:
        return f"its weights are {str(layer.weight.dtype).removeprefix('torch.')}"
    return None
