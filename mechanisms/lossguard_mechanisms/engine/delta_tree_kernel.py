# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernels that verify a tree through the gated delta rule, and commit a path of it.

``verification`` and ``commit`` have the algebra. One program holds the columns of one value head's state of one
sequence, [key_dim, BLOCK], reads them once for all nodes, and (commit) writes them once, where they lie. All products
have the precision of float32; (I + T) U = R is solved row by row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lossguard_mechanisms.engine.verification import DeltaStash
from lossguard_mechanisms.targets.gated_delta import NORM_EPSILON
from lossguard_mechanisms.targets.mixing import DeltaInputs

_VERIFY_BLOCK, _VERIFY_WARPS, _PART = 128, 4, 32
_COMMIT_BLOCK, _COMMIT_WARPS = 64, 4
_LEAST_TILE = 16


@triton.jit
def _products(a, b):
    """In float32 up to rounding: three products of tf32."""
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def _narrow_products(a, b, WIDE: tl.constexpr):
    """``a`` is narrow, 16 bits, which tf32 holds exactly: two products do, of the upper and the lower bits of ``b``."""
    if WIDE:
        return _products(a, b)
    upper = (b.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    wide = a.to(tl.float32)
    return tl.dot(wide, upper, input_precision="tf32") + tl.dot(wide, b - upper, input_precision="tf32")


@triton.jit
def _pairs(a, b, WIDE: tl.constexpr):
    """Products of rows with rows: exact for narrow ones."""
    if WIDE:
        return _products(a, tl.trans(b))
    return tl.dot(a, tl.trans(b))


@triton.jit
def _verify_kernel(  # noqa: PLR0913
    query, key, value, log_decay, beta, bits, states, slots, output, keys, updates, totals,
    query_stride, key_stride, value_stride, scale, NODES: tl.constexpr, TILE: tl.constexpr, HEADS: tl.constexpr,
    GROUPS: tl.constexpr, KEY: tl.constexpr, PART: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr,
    EPSILON: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    sequence, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    shared, slot = head // GROUPS, tl.load(slots + sequence)
    nodes, columns = tl.arange(0, TILE), block * BLOCK + tl.arange(0, BLOCK)
    is_node = nodes < NODES
    rows = sequence * NODES + nodes
    query_rows = query + rows[:, None] * query_stride + shared * KEY
    key_rows = key + rows[:, None] * key_stride + shared * KEY
    state = states + (slot * HEADS + head) * KEY * VALUE + columns
    query_square, key_square = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
    same, attention = tl.zeros((TILE, TILE), tl.float32), tl.zeros((TILE, TILE), tl.float32)
    recalled, asked = tl.zeros((TILE, BLOCK), tl.float32), tl.zeros((TILE, BLOCK), tl.float32)
    for begin in range(0, KEY, PART):  # queries and keys as they come; their lengths are divided out below
        wide = begin + tl.arange(0, PART)
        s = tl.load(state + wide[:, None] * VALUE)
        q = tl.load(query_rows + wide, mask=is_node[:, None], other=0.0)
        k = tl.load(key_rows + wide, mask=is_node[:, None], other=0.0)
        query_square += tl.sum(q.to(tl.float32) * q.to(tl.float32), 1)
        key_square += tl.sum(k.to(tl.float32) * k.to(tl.float32), 1)
        same += _pairs(k, k, WIDE)
        attention += _pairs(q, k, WIDE)
        recalled += _narrow_products(k, s, WIDE)
        asked += _narrow_products(q, s, WIDE)
    is_own = nodes[:, None] == nodes[None, :]
    unit = 1.0 / tl.sqrt(key_square + EPSILON)
    unit_across = tl.sum(tl.where(is_own, unit[:, None], 0.0), 0)
    query_unit = (scale / tl.sqrt(query_square + EPSILON))[:, None]
    fade = tl.load(log_decay + rows * HEADS + head, mask=is_node, other=0.0)
    rate = tl.load(beta + rows * HEADS + head, mask=is_node, other=0.0).to(tl.float32)[:, None]
    seen = tl.load(bits + rows, mask=is_node, other=0)
    is_ancestor = ((seen[:, None] >> nodes[None, :]) & 1) == 1
    total = tl.sum(tl.where(is_ancestor, fade[None, :], 0.0), 1)
    across = tl.sum(tl.where(is_own, total[:, None], 0.0), 0)
    decay = tl.exp(tl.where(is_ancestor, total[:, None] - across[None, :], float("-inf"))) * unit_across[None, :]
    system = tl.where(is_own, 0.0, rate * unit[:, None] * decay * same)
    grown = tl.exp(total)[:, None]
    v = tl.load(value + rows[:, None] * value_stride + head * VALUE + columns, mask=is_node[:, None], other=0.0)
    solved = rate * (v.to(tl.float32) - grown * unit[:, None] * recalled)
    for node in range(1, NODES):
        reading = tl.sum(tl.where(nodes[:, None] == node, system, 0.0), 0)  # row ``node`` of the system
        earlier = tl.sum(reading[:, None] * solved, 0)
        solved = tl.where(nodes[:, None] == node, solved - earlier[None, :], solved)
    mixed = grown * query_unit * asked + _products(attention * query_unit * decay, solved)
    out = (rows * HEADS + head)[:, None] * VALUE + columns
    tl.store(output + out, mixed.to(output.dtype.element_ty), mask=is_node[:, None])
    kept = (sequence * HEADS + head) * NODES + nodes
    tl.store(updates + kept[:, None] * VALUE + columns, solved, mask=is_node[:, None])
    tl.store(totals + kept, total, mask=is_node & (block == 0))
    if (block == 0) & (head % GROUPS == 0):
        wide = tl.arange(0, KEY)
        k = tl.load(key_rows + wide, mask=is_node[:, None], other=0.0).to(tl.float32) * unit[:, None]
        place = (sequence * (HEADS // GROUPS) + shared) * NODES + nodes
        tl.store(keys + place[:, None] * KEY + wide, k, mask=is_node[:, None])


@triton.jit
def _commit_kernel(  # noqa: PLR0913
    keys, updates, totals, on_path, last, states, slots, NODES: tl.constexpr, TILE: tl.constexpr, HEADS: tl.constexpr,
    GROUPS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    sequence, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot, end_node = tl.load(slots + sequence), tl.load(last + sequence)
    nodes, wide = tl.arange(0, TILE), tl.arange(0, KEY)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    kept = (sequence * HEADS + head) * NODES
    is_kept = (tl.load(on_path + sequence * NODES + nodes, mask=nodes < NODES, other=0) != 0) & (nodes < NODES)
    total = tl.load(totals + kept + nodes, mask=is_kept, other=0.0)
    end = tl.load(totals + kept + end_node)
    weight = tl.where(is_kept, tl.exp(end - total), 0.0)
    unit = ((sequence * (HEADS // GROUPS) + head // GROUPS) * NODES + nodes)[:, None] * KEY + wide
    k = tl.load(keys + unit, mask=is_kept[:, None], other=0.0) * weight[:, None]
    u = tl.load(updates + (kept + nodes)[:, None] * VALUE + columns, mask=is_kept[:, None], other=0.0)
    place = (slot * HEADS + head) * KEY * VALUE + wide[:, None] * VALUE + columns
    state = tl.load(states + place) * tl.exp(end)
    tl.store(states + place, state + _products(tl.trans(k), u))


def verify_delta_in_place(
    inputs: DeltaInputs, bits: Tensor, states: Tensor, slots: Tensor
) -> tuple[Tensor, DeltaStash]:
    """As ``verification.verify_delta`` for the sequences in ``slots`` [B], whose ``states`` are read where they lie.

    ``inputs`` lead with [B * N]; ``bits`` [B, N] int64, see ``paged_step.own_bits``; ``states`` [slots, value heads,
    key_dim, value_dim] float32 stay as they are. ``key_dim`` is a power of two from 16 on, ``value_dim`` a multiple of
    16, N at most 64. Outputs are [B * N, value heads, value_dim].
    """
    (batch, nodes), (heads, value_dim), (key_heads, key_dim) = bits.shape, inputs.value.shape[1:], inputs.key.shape[1:]
    device = inputs.value.device
    output = torch.empty((batch * nodes, heads, value_dim), dtype=inputs.value.dtype, device=device)
    keys, updates, totals = (
        torch.empty((batch, *shape), dtype=torch.float32, device=device)
        for shape in ((key_heads, nodes, key_dim), (heads, nodes, value_dim), (heads, nodes))
    )
    block = _block_of(value_dim, _VERIFY_BLOCK)
    _verify_kernel[(batch, heads, value_dim // block)](
        inputs.query, inputs.key, inputs.value, inputs.log_decay.contiguous(), inputs.beta.contiguous(), bits, states,
        slots, output, keys, updates, totals, inputs.query.stride(0), inputs.key.stride(0), inputs.value.stride(0),
        key_dim**-0.5, NODES=nodes, TILE=_tile_of(nodes), HEADS=heads, GROUPS=heads // key_heads, KEY=key_dim,
        PART=min(_PART, key_dim), VALUE=value_dim, BLOCK=block, EPSILON=NORM_EPSILON,
        WIDE=inputs.key.dtype == torch.float32, num_warps=_VERIFY_WARPS,
    )  # fmt: skip
    return output, DeltaStash(keys=keys, updates=updates, totals=totals)


def commit_delta_in_place(stash: DeltaStash, on_path: Tensor, last: Tensor, states: Tensor, slots: Tensor) -> None:
    """Change ``states`` of one layer as ``commit`` says; ``on_path`` [B, N] bool, ``last`` [B] the path's last node."""
    batch, key_heads, nodes, key_dim = stash.keys.shape
    heads, value_dim = stash.updates.shape[1], stash.updates.shape[3]
    block = _block_of(value_dim, _COMMIT_BLOCK)
    _commit_kernel[(batch, heads, value_dim // block)](
        stash.keys, stash.updates, stash.totals, on_path.to(torch.int8), last, states, slots, NODES=nodes,
        TILE=_tile_of(nodes), HEADS=heads, GROUPS=heads // key_heads, KEY=key_dim, VALUE=value_dim, BLOCK=block,
        num_warps=_COMMIT_WARPS,
    )  # fmt: skip


def _block_of(value_dim: int, most: int) -> int:
    return min(most, value_dim & -value_dim)


def _tile_of(nodes: int) -> int:
    return max(_LEAST_TILE, 1 << (nodes - 1).bit_length())
