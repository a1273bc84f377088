"""The same algorithm in torch's own operations: for devices without Triton, and to try arithmetic over many rounds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lossguard_kernels.forests.forest import Forest
from lossguard_kernels.wy_verify.rows import NORM_EPSILON, DeltaRows, Pending, Stash

Product = Callable[[Tensor, Tensor], Tensor]
"""Of matrices with the state, or with updates: [.., N, K] and [.., K, V]."""

TILE = 16


def verify(
    rows: DeltaRows, forest: Forest, states: Tensor, slots: Tensor, pending: Pending | None = None
) -> tuple[Tensor, Stash]:
    """As ``operation.verify``, one request after the other; the device is asked where trees begin.

    ``pending`` is of one layer.
    """
    outputs = torch.empty_like(rows.value, memory_format=torch.contiguous_format)
    kept = _stash_like(rows)
    for request, (first, count) in enumerate(zip(forest.firsts.tolist(), forest.counts.tolist(), strict=True)):
        if count:
            own = slice(first, first + count)
            one = _rows_of(rows, own)
            state = states[slots[request]]
            if pending is not None:
                state = _with_pending(pending, int(slots[request]), state)
            output, stash = verify_tree(one, _mask_of(forest.bits[own]), state)
            outputs[own] = output.to(outputs.dtype)
            kept.keys[own], kept.units[own] = stash.keys, stash.units
            kept.updates[own], kept.totals[own] = stash.updates, stash.totals
    return outputs, kept


def verify_tree(rows: DeltaRows, mask: Tensor, state: Tensor, product: Product = torch.matmul) -> tuple[Tensor, Stash]:
    """Outputs [N, heads, value_dim] in float32 and the stash of one tree; ``mask`` [N, N] of ancestors and self."""
    groups = rows.value.shape[1] // rows.key.shape[1]
    key, query = (x.float().transpose(0, 1).repeat_interleave(groups, 0) for x in (rows.key, rows.query))
    units = 1 / (key.square().sum(-1) + NORM_EPSILON).sqrt()  # [heads, N]
    query_unit = (key.shape[-1] ** -0.5 / (query.square().sum(-1) + NORM_EPSILON).sqrt())[..., None]
    rate = rows.beta.float().T[..., None]
    total = (torch.where(mask, rows.log_decay.float().T[:, None, :], 0.0)).sum(-1)
    gap = (total[:, :, None] - total[:, None, :]).masked_fill(~mask, float("-inf"))
    decay = gap.exp() * units[:, None, :]
    grown = total.exp()[..., None]
    system = (rate * units[..., None] * decay * (key @ key.mT)).tril(-1)
    right = rate * (rows.value.float().transpose(0, 1) - grown * units[..., None] * product(key, state))
    update = solve(system, right, product)
    output = grown * query_unit * product(query, state) + product((query @ key.mT) * query_unit * decay, update)
    stash = Stash(
        keys=rows.key, units=units[::groups].T, updates=update.transpose(0, 1).contiguous(), totals=total.T.contiguous()
    )
    return output.transpose(0, 1), stash


def solve(system: Tensor, right: Tensor, product: Product = torch.matmul) -> Tensor:
    """``(I + T) U = right`` in tiles of 16 rows, as ``solving`` says."""
    solved = right.clone()
    for begin in range(0, system.shape[-1], TILE):
        own = slice(begin, min(begin + TILE, system.shape[-1]))
        mine = right[..., own, :]
        if begin:
            mine = mine - product(system[..., own, :begin], solved[..., :begin, :])
        solved[..., own, :] = product(_inverse(system[..., own, own]), mine)
    return solved


def path_state(stash: Stash, path: Tensor, state: Tensor, product: Product = torch.matmul) -> Tensor:
    """The state [heads, key_dim, value_dim] after the rows ``path`` [L] of one layer's stash."""
    groups = stash.updates.shape[1] // stash.keys.shape[1]
    key = stash.keys[path].float().repeat_interleave(groups, 1).permute(1, 2, 0)  # [heads, key_dim, L]
    total = stash.totals[path].T  # [heads, L]
    unit = stash.units[path].repeat_interleave(groups, 1).T
    weight = unit * (total[:, -1:] - total).exp()
    return total[:, -1, None, None].exp() * state + product(
        key, weight[..., None] * stash.updates[path].transpose(0, 1)
    )


def _inverse(inner: Tensor) -> Tensor:
    size = inner.shape[-1]
    found = torch.eye(size, dtype=inner.dtype, device=inner.device).expand_as(inner).clone()
    for row in range(1, size):
        found[..., row, :] -= (inner[..., row, :row, None] * found[..., :row, :]).sum(-2)
    return found


def _with_pending(pending: Pending, slot: int, state: Tensor) -> Tensor:
    count, begin = int(pending.counts[slot]), slot * pending.capacity
    path = torch.arange(begin, begin + count, device=state.device)
    return path_state(pending.stash, path, state) if count else state


def _mask_of(bits: Tensor) -> Tensor:
    return ((bits[:, None] >> torch.arange(len(bits), device=bits.device)) & 1) == 1


def _rows_of(rows: DeltaRows, own: slice) -> DeltaRows:
    return DeltaRows(
        query=rows.query[own],
        key=rows.key[own],
        value=rows.value[own],
        log_decay=rows.log_decay[own],
        beta=rows.beta[own],
    )


def _stash_like(rows: DeltaRows) -> Stash:
    device = rows.value.device
    return Stash(
        keys=torch.empty_like(rows.key, memory_format=torch.contiguous_format),
        units=torch.empty(rows.key.shape[:2], dtype=torch.float32, device=device),
        updates=torch.empty(rows.value.shape, dtype=torch.float32, device=device),
        totals=torch.empty(rows.value.shape[:2], dtype=torch.float32, device=device),
    )
