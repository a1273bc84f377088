"""Linear layers whose weights lie in oneDNN's own layout, for bfloat16 on a CPU.

Without it torch rearranges every weight matrix again at every call: at a few rows per call that costs about as much
as the product itself. The kernel and its order of summation stay the same, so results are equal bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch


class PackedLinear(torch.nn.Module):
    """Stands in for a ``torch.nn.Linear``; keeps no other copy of its weight."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        operators: Any = torch.ops.mkldnn
        self._apply_packed = operators._linear_pointwise
        self._packed = operators._reorder_linear_weight(linear.weight.detach())
        self._bias = None if linear.bias is None else linear.bias.detach()
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, values: torch.Tensor) -> Any:
        """[..., in_features] to [..., out_features]."""
        return self._apply_packed(values, self._packed, self._bias, "none", [], "")


def pack_linear_layers(model: torch.nn.Module) -> int:
    """Replace every linear layer of a model in place; returns how many there were."""
    parents = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is torch.nn.Linear
    ]
    with torch.no_grad():
        for parent, name in parents:
            setattr(parent, name, PackedLinear(getattr(parent, name)))
    return len(parents)
