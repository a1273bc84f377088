"""A target whose linear layers and head hold W12: the same weights bit for bit, in three quarters of the memory."""

from __future__ import annotations

import torch

from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.weights.w12.codec import encode
from lossguard_mechanisms.weights.w12.failures import wrong_dtype
from lossguard_mechanisms.weights.w12.fused_linear import fuse_linears
from lossguard_mechanisms.weights.w12.linear import W12Linear, replace_linears


def convert_target(target: Target) -> None:
    """Convert in place, where the weights are: for the kernels on CUDA, else to be decoded before every product.

    A head that is tied to the embedding gets W12 of its own beside the dense rows for lookups. Raises UsageError LG1201
    for a target that is not in bfloat16.
    """
    weight = target.embedding.weight
    if weight.dtype != torch.bfloat16:
        raise wrong_dtype(str(weight.dtype).removeprefix("torch."))
    replace_linears(target)
    if target.head is None:
        target.head = W12Linear(encode(weight))
    if weight.is_cuda:
        fuse_linears(target)
