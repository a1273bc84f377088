# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""What the benchmark compares with: the token-by-token rule over a tree, with snapshots or path after path.

Both take the inputs of ``operation.verify`` and give its outputs, in float32 arithmetic without tensor cores.
Snapshots: one program walks the nodes in their order, writes the state after each of them, and reads its parent's again
unless that was the last one; a commit copies a snapshot. Paths: every path to a leaf is a sequence of its own that
starts from the committed state, as kernels for plain sequences do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from lossguard_kernels.forests.forest import Forest
from lossguard_kernels.wy_verify.naive import path_to
from lossguard_kernels.wy_verify.rows import NORM_EPSILON, DeltaRows

_BLOCK = 32


@triton.jit
def _stepped(  # noqa: PLR0913
    state, query, key, value, log_decay, beta, row, head, columns, query_stride, key_stride, value_stride, scale,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    """The state and the output after one more row."""
    channels, shared = tl.arange(0, KEY), head // GROUPS
    q = tl.load(query + row * query_stride + shared * KEY + channels).to(tl.float32)
    k = tl.load(key + row * key_stride + shared * KEY + channels).to(tl.float32)
    v = tl.load(value + row * value_stride + head * VALUE + columns).to(tl.float32)
    q = q * (scale / tl.sqrt(tl.sum(q * q, 0) + EPSILON))
    k = k * (1.0 / tl.sqrt(tl.sum(k * k, 0) + EPSILON))
    state = state * tl.exp(tl.load(log_decay + row * HEADS + head))
    rate = tl.load(beta + row * HEADS + head).to(tl.float32)
    update = rate * (v - tl.sum(state * k[:, None], 0))
    state += k[:, None] * update
    return state, tl.sum(state * q[:, None], 0)


@triton.jit
def _snapshot_kernel(  # noqa: PLR0913
    query, key, value, log_decay, beta, firsts, counts, parents, states, slots, output, snapshots, query_stride,
    key_stride, value_stride, scale, HEADS: tl.constexpr, GROUPS: tl.constexpr, KEY: tl.constexpr,
    VALUE: tl.constexpr, BLOCK: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    request, head = tl.program_id(0), tl.program_id(1)
    columns = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    first, inside = tl.load(firsts + request), tl.arange(0, KEY)[:, None] * VALUE + columns
    committed = states + (tl.load(slots + request).to(tl.int64) * HEADS + head) * KEY * VALUE + inside
    state = tl.load(committed)
    for node in range(0, tl.load(counts + request)):
        row = first + node
        parent = tl.load(parents + row)
        if parent != node - 1:
            at = tl.maximum(parent, 0)
            old = tl.load(snapshots + ((first + at) * HEADS + head) * KEY * VALUE + inside, mask=parent >= 0, other=0.0)
            state = tl.where(parent >= 0, old, tl.load(committed))
        state, mixed = _stepped(
            state, query, key, value, log_decay, beta, row, head, columns, query_stride, key_stride, value_stride,
            scale, HEADS, GROUPS, KEY, VALUE, EPSILON,
        )  # fmt: skip
        tl.store(snapshots + (row * HEADS + head) * KEY * VALUE + inside, state)
        tl.debug_barrier()  # a later node may read what other threads have written
        tl.store(output + (row * HEADS + head) * VALUE + columns, mixed.to(output.dtype.element_ty))


@triton.jit
def _path_kernel(  # noqa: PLR0913
    query, key, value, log_decay, beta, paths, lengths, owners, states, slots, output, query_stride, key_stride,
    value_stride, scale, longest, HEADS: tl.constexpr, GROUPS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    BLOCK: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    path, head = tl.program_id(0), tl.program_id(1)
    columns = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + tl.load(owners + path)).to(tl.int64)
    inside = tl.arange(0, KEY)[:, None] * VALUE + columns
    state = tl.load(states + (slot * HEADS + head) * KEY * VALUE + inside)
    for step in range(0, tl.load(lengths + path)):
        row = tl.load(paths + path * longest + step)
        state, mixed = _stepped(
            state, query, key, value, log_decay, beta, row, head, columns, query_stride, key_stride, value_stride,
            scale, HEADS, GROUPS, KEY, VALUE, EPSILON,
        )  # fmt: skip
        tl.store(output + (row * HEADS + head) * VALUE + columns, mixed.to(output.dtype.element_ty))


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """All paths to leaves of a forest."""

    rows: Tensor  # [paths, longest] int64; past a path's end its last row
    lengths: Tensor  # [paths] int64
    owners: Tensor  # [paths] int64: the request


def paths_of(parents: Sequence[Sequence[int]], device: torch.device | str) -> Paths:
    """Every path to a node without children."""
    rows, owners, begin = [], [], 0
    for request, tree in enumerate(parents):
        for node in sorted(set(range(len(tree))) - set(tree)):
            rows.append([begin + step for step in path_to(tree, node)])
            owners.append(request)
        begin += len(tree)
    longest = max(map(len, rows))
    padded = [path + path[-1:] * (longest - len(path)) for path in rows]
    return Paths(
        rows=torch.tensor(padded, device=device),
        lengths=torch.tensor([len(path) for path in rows], device=device),
        owners=torch.tensor(owners, device=device),
    )


def with_snapshots(
    rows: DeltaRows, forest: Forest, parents: Tensor, states: Tensor, slots: Tensor, snapshots: Tensor
) -> Tensor:
    """Outputs; the state after every row is left in ``snapshots`` [rows, heads, key_dim, value_dim].

    ``parents`` [rows] int64 count from their tree's first node. key_dim is a power of two, value_dim a multiple of 32.
    """
    output = torch.empty_like(rows.value, memory_format=torch.contiguous_format)
    heads, key_dim, value_dim = states.shape[1:]
    _snapshot_kernel[(forest.num_trees, heads, value_dim // _BLOCK)](
        *_inputs(rows), forest.firsts, forest.counts, parents, states, slots, output, snapshots, *_strides(rows),
        key_dim**-0.5, **_shape(rows),
    )  # fmt: skip
    return output


def path_by_path(rows: DeltaRows, paths: Paths, states: Tensor, slots: Tensor) -> Tensor:
    """Outputs; nothing else is kept. Sizes as for ``with_snapshots``."""
    output = torch.empty_like(rows.value, memory_format=torch.contiguous_format)
    heads, key_dim, value_dim = states.shape[1:]
    _path_kernel[(len(paths.lengths), heads, value_dim // _BLOCK)](
        *_inputs(rows), paths.rows, paths.lengths, paths.owners, states, slots, output, *_strides(rows),
        key_dim**-0.5, paths.rows.shape[1], **_shape(rows),
    )  # fmt: skip
    return output


def _inputs(rows: DeltaRows) -> tuple[Tensor, ...]:
    return rows.query, rows.key, rows.value, rows.log_decay.contiguous(), rows.beta.contiguous()


def _strides(rows: DeltaRows) -> tuple[int, int, int]:
    return rows.query.stride(0), rows.key.stride(0), rows.value.stride(0)


def _shape(rows: DeltaRows) -> dict[str, int | float]:
    heads, key_heads = rows.value.shape[1], rows.key.shape[1]
    return {
        "HEADS": heads, "GROUPS": heads // key_heads, "KEY": rows.key.shape[2], "VALUE": rows.value.shape[2],
        "BLOCK": _BLOCK, "EPSILON": NORM_EPSILON,
    }  # fmt: skip
