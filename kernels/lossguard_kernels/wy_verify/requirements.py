"""What the kernels take; everything else is refused before a launch. The device is asked nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from lossguard_kernels.forests.failures import too_many_nodes, wrong_tensors
from lossguard_kernels.forests.forest import MAX_NODES, Forest
from lossguard_kernels.forests.strides import heads_lie_together
from lossguard_kernels.wy_verify.rows import DeltaRows, Stash

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def require_rows(rows: DeltaRows, forest: Forest, states: Tensor, slots: Tensor) -> None:
    """Raises UsageError LG1901 (nodes) or LG1911 (everything else)."""
    if not 0 < forest.most_nodes <= MAX_NODES:
        raise too_many_nodes(forest.most_nodes, MAX_NODES, "the kernel takes")
    problem = _sizes(rows, forest, slots) or _states(rows, states) or _layout(rows)
    if problem:
        raise wrong_tensors(problem)


def require_stash(stash: Stash, rows: DeltaRows) -> None:
    """Raises UsageError LG1911 unless the stash is one layer's and as large as the rows."""
    if stash.keys.shape != rows.key.shape or stash.keys.dtype != rows.key.dtype:
        raise wrong_tensors(f"a stash for keys {list(stash.keys.shape)} of {stash.keys.dtype}")
    if stash.updates.shape != rows.value.shape:
        raise wrong_tensors(f"a stash for values {list(stash.updates.shape)}, they are {list(rows.value.shape)}")


def _sizes(rows: DeltaRows, forest: Forest, slots: Tensor) -> str | None:
    num_rows, key_heads, key_dim = rows.key.shape
    heads, value_dim = rows.value.shape[1:]
    if rows.query.shape != rows.key.shape or rows.value.shape[0] != num_rows:
        return f"queries {list(rows.query.shape)}, keys {list(rows.key.shape)}, values {list(rows.value.shape)}"
    if heads % key_heads:
        return f"{heads} value heads do not divide among {key_heads} key heads"
    if rows.log_decay.shape != (num_rows, heads) or rows.beta.shape != (num_rows, heads):
        return f"log decays {list(rows.log_decay.shape)} and rates {list(rows.beta.shape)}"
    if key_dim % 16 or value_dim % 16:
        return f"heads of {key_dim} and {value_dim} channels, where multiples of 16 are needed"
    if forest.bits.shape != (num_rows,) or slots.shape != forest.firsts.shape:
        return f"{num_rows} rows, {forest.bits.shape[0]} words of ancestors, {slots.shape[0]} slots"
    return None


def _states(rows: DeltaRows, states: Tensor) -> str | None:
    expected = (*rows.value.shape[1:2], rows.key.shape[2], rows.value.shape[2])
    if states.dim() != 4 or states.shape[1:] != expected:
        return f"states {list(states.shape)}, not [slots, {', '.join(map(str, expected))}]"
    if states.dtype != torch.float32 or not states.is_contiguous():
        return f"states are {states.dtype}, and must be contiguous float32"
    return None


def _layout(rows: DeltaRows) -> str | None:
    if rows.log_decay.dtype != torch.float32:
        return f"log decays are {rows.log_decay.dtype}, not float32"
    for name, tensor in (("queries", rows.query), ("keys", rows.key), ("values", rows.value)):
        if tensor.dtype not in _DTYPES or tensor.dtype != rows.key.dtype:
            return f"{name} are {tensor.dtype}, keys {rows.key.dtype}"
        if not heads_lie_together(tensor):
            return f"heads of {name} do not lie together"
    return None
