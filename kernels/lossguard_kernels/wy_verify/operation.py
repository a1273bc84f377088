"""Verification of a forest through the gated delta rule, and commit of one path a request, at once or deferred.

A verification changes no state: rolling back is doing nothing. ``states`` are [layers, slots, value heads, key_dim,
value_dim] float32 and contiguous; a request's state lies in its slot, a different one for every request of a call.
``last`` [R] int64 holds each path's last node, counted from its tree's first; -1 commits nothing.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lossguard_kernels.forests.failures import wrong_tensors
from lossguard_kernels.forests.forest import Forest
from lossguard_kernels.forests.interpreter import INTERPRETED, require_triton
from lossguard_kernels.wy_verify import plain
from lossguard_kernels.wy_verify.launch_sizes import (
    ALONE_TILE,
    LaunchSizes,
    RelateSizes,
    Work,
    commit_sizes,
    relate_sizes,
    verify_sizes,
)
from lossguard_kernels.wy_verify.requirements import require_rows, require_stash
from lossguard_kernels.wy_verify.rows import NORM_EPSILON, DeltaRows, Pending, Stash, StashShape, empty_stash

BACKENDS = ("triton", "torch")
_CHUNK = 512


def verify(  # noqa: PLR0913
    rows: DeltaRows,
    forest: Forest,
    states: Tensor,
    slots: Tensor,
    *,
    pending: Pending | None = None,
    stash: Stash | None = None,
    sizes: LaunchSizes | None = None,
    backend: str = "triton",
) -> tuple[Tensor, Stash]:
    """Outputs of every node of one layer, [rows, value heads, value_dim] in the values' dtype, and its stash.

    ``states`` [slots, value heads, key_dim, value_dim] is that layer's, ``slots`` [R] int64, and ``pending`` holds that
    layer's rows that the states lack; ``stash`` is written to if given. key_dim and value_dim are multiples of 16.
    Raises UsageError LG1901, LG1911 or LG1913.
    """
    assert backend in BACKENDS, f"a backend is one of {BACKENDS}"
    require_rows(rows, forest, states, slots)
    if backend == "torch":
        return plain.verify(rows, forest, states, slots, pending)
    kept = stash if stash is not None else empty_stash(_shape_of(rows), states.device).layer(0)
    require_stash(kept, rows)
    require_triton()
    return _launch_verify(rows, forest, states, slots, pending=pending, kept=kept, sizes=sizes), kept


def _launch_verify(  # noqa: PLR0913
    rows: DeltaRows,
    forest: Forest,
    states: Tensor,
    slots: Tensor,
    *,
    pending: Pending | None,
    kept: Stash,
    sizes: LaunchSizes | None,
) -> Tensor:
    from lossguard_kernels.wy_verify.verify_kernel import verify_kernel  # triton is optional, and slow to import

    heads, key_dim, value_dim = states.shape[1:]
    work = Work(tile=forest.tile, programs=forest.num_trees * heads, key_dim=key_dim, value_dim=value_dim)
    used = sizes or verify_sizes(work)
    rows = replace(rows, log_decay=rows.log_decay.contiguous(), beta=rows.beta.contiguous())
    is_related = forest.tile > ALONE_TILE
    relating = _relate(rows, forest, kept, relate_sizes(work)) if is_related else (kept.totals,) * 3  # or not read
    old, old_forest = (kept, forest) if pending is None else (pending.stash, pending.forest(slots))
    output = torch.empty_like(rows.value, memory_format=torch.contiguous_format)
    verify_kernel[(forest.num_trees, heads, value_dim // used.block)](
        rows.query, rows.key, rows.value, rows.log_decay, rows.beta, forest.firsts,
        forest.counts, forest.bits, states, slots, *relating, output, kept.keys, kept.units, kept.updates, kept.totals,
        old_forest.firsts, old_forest.counts, old.keys, old.units, old.updates, old.totals, rows.query.stride(0),
        rows.key.stride(0), rows.value.stride(0), key_dim**-0.5, TILE=forest.tile, HEADS=heads,
        GROUPS=heads // rows.key.shape[1], KEY=key_dim, PADDED=_padded(key_dim), PART=used.part,
        VALUE=value_dim, BLOCK=used.block, PENDING=0 if pending is None else pending.capacity, EPSILON=NORM_EPSILON,
        IS_RELATED=is_related, WIDE=_is_wide(rows.key), CAST=INTERPRETED, num_warps=used.warps,
        num_stages=used.stages,
    )  # fmt: skip
    return output


def _relate(rows: DeltaRows, forest: Forest, kept: Stash, used: RelateSizes) -> tuple[Tensor, Tensor, Tensor]:
    """Inverses and weights [R, heads, tile, tile], factors [3, R, heads, tile]; keys, lengths, decays to the stash."""
    from lossguard_kernels.wy_verify.relate_kernel import relate_kernel

    key_heads, key_dim = rows.key.shape[1:]
    heads, tile = rows.value.shape[1], forest.tile
    inverses, weights = torch.empty(
        (2, forest.num_trees, heads, tile, tile), dtype=torch.float32, device=rows.key.device
    )
    factors = weights.new_empty((3, forest.num_trees, heads, tile))
    relate_kernel[(forest.num_trees, heads)](
        rows.query, rows.key, rows.log_decay, rows.beta, forest.firsts, forest.counts,
        forest.bits, kept.keys, kept.units, kept.totals, inverses, weights, factors, rows.query.stride(0),
        rows.key.stride(0), key_dim**-0.5, TILE=tile, HEADS=heads, GROUPS=heads // key_heads, KEY=key_dim,
        PADDED=_padded(key_dim), PART=used.part, EPSILON=NORM_EPSILON, WIDE=_is_wide(rows.key),
        CAST=INTERPRETED, num_warps=used.warps, num_stages=1,
    )  # fmt: skip
    return inverses, weights, factors


def commit(stash: Stash, forest: Forest, last: Tensor, states: Tensor, slots: Tensor) -> None:
    """Fold each request's path into the states of all layers: one launch. Raises UsageError LG1911 or LG1913."""
    if states.dim() != 5 or states.shape[0] != stash.keys.shape[0] or not states.is_contiguous():
        raise wrong_tensors(f"states {list(states.shape)} for a stash of {stash.keys.shape[0]} layers")
    require_triton()
    from lossguard_kernels.wy_verify.commit_kernel import commit_kernel

    layers, num_slots, heads, key_dim, value_dim = states.shape
    used = commit_sizes(
        Work(tile=forest.tile, programs=layers * forest.num_trees * heads, key_dim=key_dim, value_dim=value_dim)
    )
    commit_kernel[(layers * forest.num_trees, heads, value_dim // used.block)](
        stash.keys, stash.units, stash.updates, stash.totals, forest.firsts, forest.counts, forest.bits, last, states,
        slots, forest.num_trees, stash.keys.shape[1], num_slots, TILE=forest.tile, HEADS=heads,
        GROUPS=heads // stash.keys.shape[2], KEY=key_dim, PART=used.part, VALUE=value_dim, BLOCK=used.block,
        WIDE=_is_wide(stash.keys), CAST=INTERPRETED, num_warps=used.warps, num_stages=used.stages,
    )  # fmt: skip


def defer(stash: Stash, forest: Forest, last: Tensor, pending: Pending, slots: Tensor, *, most_rows: int) -> None:
    """Append each request's path to ``pending`` in place of the states; nothing of a state is read or written.

    ``most_rows`` is the most that any slot may hold afterwards, as far as the host knows (each commit adds at most the
    depth of its tree). Raises UsageError LG1912 where that does not fit, or LG1913.
    """
    pending.require_room(most_rows)
    require_triton()
    from lossguard_kernels.wy_verify.commit_kernel import defer_kernel

    layers, num_rows, key_heads, key_dim = stash.keys.shape
    heads, value_dim = stash.updates.shape[2:]
    old, chains = pending.stash, pending.forest(slots)
    defer_kernel[(layers * forest.num_trees, forest.most_nodes)](
        stash.keys, stash.units, stash.updates, stash.totals, forest.firsts, forest.bits, last, chains.firsts,
        chains.counts, old.keys, old.units, old.updates, old.totals, forest.num_trees, num_rows, old.keys.shape[1],
        TILE=forest.tile, HEADS=heads, TOTALS=_padded(heads), GROUPS=heads // key_heads, KEY=key_dim,
        VALUE=value_dim, CHUNK=_CHUNK,
    )  # fmt: skip
    pending.counts.index_add_(0, slots, path_lengths(forest, last))


def fold(pending: Pending, states: Tensor, slots: Tensor) -> None:
    """Bring the states of ``slots`` [R] up to date, which empties their rows. Raises UsageError LG1911 or LG1913."""
    chains = pending.forest(slots)
    commit(pending.stash, chains, chains.counts - 1, states, slots)
    pending.counts.index_fill_(0, slots, 0)


def path_lengths(forest: Forest, last: Tensor) -> Tensor:
    """[R] int64: nodes from the root to ``last``."""
    words = forest.bits[(forest.firsts + last).clamp(min=0)]
    places = torch.arange(forest.most_nodes, device=last.device)
    return (((words[:, None] >> places) & 1).sum(1)).where(last >= 0, 0)


def _shape_of(rows: DeltaRows) -> StashShape:
    num_rows, key_heads, key_dim = rows.key.shape
    heads, value_dim = rows.value.shape[1:]
    return StashShape(
        layers=1,
        rows=num_rows,
        key_heads=key_heads,
        heads=heads,
        key_dim=key_dim,
        value_dim=value_dim,
        dtype=rows.key.dtype,
    )


def _padded(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _is_wide(key: Tensor) -> bool:
    """Whether products need more than exact bfloat16 operands."""
    return key.dtype != torch.bfloat16


def layer_of(pending: Pending, layer: int) -> Pending:
    """One layer's waiting rows, as ``verify`` takes them."""
    return replace(pending, stash=pending.stash.layer(layer))
