"""A target whose linear layers and head hold W12: the same weights bit for bit, in three quarters of the memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.weights.w12.failures import wrong_dtype
from lossguard_mechanisms.weights.w12.fused_linear import fuse_linears
from lossguard_mechanisms.weights.w12.linear import W12Linear, replace_linears
from lossguard_mechanisms.weights.w12.policy import decide
from lossguard_mechanisms.weights.w12_plugins.failures import nothing_converted


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """How many layers of a target have W12, and why each of the others has not, by its name."""

    num_layers: int
    left: Mapping[str, str]

    def __str__(self) -> str:
        """One line for reports."""
        left = "; ".join(f"{name} ({reason})" for name, reason in sorted(self.left.items()))
        return f"{self.num_layers} of {self.num_layers + len(self.left)} layers" + (left and f", left dense: {left}")


def convert_target(target: Target) -> Conversion:
    """Convert in place, where the weights are: for the kernels on CUDA, else to be decoded before every product.

    A head that is tied to the embedding gets W12 of its own beside the dense rows for lookups; layers that the format
    does not fit stay in bfloat16. Raises UsageError LG1201 for a target that is not in bfloat16, LG1216 if no layer
    was converted.
    """
    weight = target.embedding.weight
    if weight.dtype != torch.bfloat16:
        raise wrong_dtype(str(weight.dtype).removeprefix("torch."))
    left = replace_linears(target)
    if target.head is None:
        head = decide(weight)
        if head.coded is None:
            left["head"] = head.reason
        else:
            target.head = W12Linear(head.coded)
    num_layers = sum(isinstance(layer, W12Linear) for layer in target.modules())
    if not num_layers:
        raise nothing_converted(left)
    if weight.is_cuda:
        fuse_linears(target)
    return Conversion(num_layers=num_layers, left=left)
