"""Attention of the nodes of a forest over pages, the writes before it and the compaction after it.

Pools are [pages, key heads, page_size, dim] and contiguous. Nodes are written at the positions behind the committed
ones, where nothing else reads; after acceptance those of the path move together, so that committed positions have no
gaps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard_kernels.forests.failures import wrong_tensors
from lossguard_kernels.forests.forest import Forest
from lossguard_kernels.forests.interpreter import INTERPRETED, require_triton
from lossguard_kernels.forests.strides import heads_lie_together
from lossguard_kernels.tree_attention.pages import PageTable, require_attention, require_pools
from lossguard_kernels.tree_attention.tiles import Tiles, device_of, splits_for, tiles_for


def attend(  # noqa: PLR0913
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: PageTable,
    forest: Forest,
    *,
    tiles: Tiles | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """Attention of ``query`` [rows, heads, dim] (rows may lie apart): [rows, heads, dim], scores scaled by dim^-0.5.

    Node i sees all committed positions, its ancestors and itself, whose keys and values lie in the pools already. dim
    is a multiple of 16, up to 256. Sums are in float32, and weights are rounded to the values' dtype.
    Raises UsageError LG1901, LG1911 or LG1913.
    """
    require_attention(query, keys, values, pages, forest)
    require_triton()
    return _launch(query, keys, values, pages, forest, plan_of(query, keys, pages, forest, tiles, num_splits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A launch: tiles, blocks of rows that a request's tile of queries takes, and parts of its positions."""

    tiles: Tiles
    row_blocks: int
    parts: int


def plan_of(
    query: Tensor,
    keys: Tensor,
    pages: PageTable,
    forest: Forest,
    tiles: Tiles | None = None,
    num_splits: int | None = None,
) -> Plan:
    """What ``attend`` launches for these operands on their device."""
    key_heads, page_size, dim = keys.shape[1:]
    num_rows, padded = forest.most_nodes * query.shape[1] // key_heads, _power_of_two(dim)
    itemsize, device = query.dtype.itemsize, device_of(query.device)
    used = tiles or tiles_for(padded, num_rows, itemsize, device.shared_bytes)
    row_blocks = -(-num_rows // used.rows)
    num_tiles = -(-pages.table.shape[1] * page_size // used.columns)
    programs = forest.num_trees * key_heads * row_blocks
    parts = num_splits or splits_for(programs, num_tiles, device.multiprocessors, is_alone=used.warps > 4)
    return Plan(tiles=used, row_blocks=row_blocks, parts=parts)


def _launch(query: Tensor, keys: Tensor, values: Tensor, pages: PageTable, forest: Forest, plan: Plan) -> Tensor:
    from lossguard_kernels.tree_attention.attention_kernel import attend_kernel, merge_kernel

    used, row_blocks, parts = plan.tiles, plan.row_blocks, plan.parts
    key_heads, page_size, dim = keys.shape[1:]
    most_rows = row_blocks * used.rows
    shape = {"HEADS": key_heads, "GROUPS": query.shape[1] // key_heads, "DIM": dim, "PADDED": _power_of_two(dim)}
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    partial = torch.empty(
        (forest.num_trees, key_heads, parts if parts > 1 else 0, most_rows, dim), dtype=torch.float32,
        device=query.device,
    )  # fmt: skip
    maxima, sums = (partial.new_empty(partial.shape[:-1]) for _ in range(2))
    attend_kernel[(forest.num_trees * row_blocks, key_heads, parts)](
        query, keys, values, pages.table, pages.past_lengths, forest.firsts, forest.counts, forest.bits, output,
        partial, maxima, sums, query.stride(0), dim**-0.5 / math.log(2), pages.table.shape[1], parts, row_blocks,
        ROWS=used.rows, COLUMNS=used.columns, PAGE=page_size, IS_WHOLE=parts == 1, WIDE=query.dtype == torch.float32,
        CAST=INTERPRETED, num_warps=used.warps, num_stages=used.stages, **shape,
    )  # fmt: skip
    if parts > 1:
        most_parts = _power_of_two(parts)
        merge_kernel[(forest.num_trees, key_heads, forest.most_nodes * shape["GROUPS"])](
            partial, maxima, sums, pages.past_lengths, forest.firsts, forest.counts, output, most_rows, parts,
            COLUMNS=used.columns, PARTS=most_parts, AT_ONCE=min(16, most_parts), **shape,
        )  # fmt: skip
    return output


def write(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, pages: PageTable, forest: Forest) -> None:
    """Put ``key`` and ``value`` [rows, key heads, dim] of all nodes into the pools of one layer, before ``attend``.

    Raises UsageError LG1901, LG1911 or LG1913.
    """
    require_attention(key, keys, values, pages, forest)
    is_fit = key.shape[1] == keys.shape[1] and value.shape == key.shape and value.dtype == values.dtype
    if not (is_fit and heads_lie_together(value)):
        raise wrong_tensors(f"keys {list(key.shape)} and values {list(value.shape)} of nodes")
    require_triton()
    from lossguard_kernels.tree_attention.move_kernel import write_kernel

    key_heads, page_size, dim = keys.shape[1:]
    write_kernel[(forest.num_trees, forest.most_nodes, key_heads)](
        key, value, keys, values, pages.table, pages.past_lengths, forest.firsts, forest.counts, key.stride(0),
        value.stride(0), pages.table.shape[1], HEADS=key_heads, DIM=dim, PADDED=_power_of_two(dim), PAGE=page_size,
        num_warps=1,
    )  # fmt: skip


def compact(keys: Tensor, values: Tensor, pages: PageTable, forest: Forest, last: Tensor) -> None:
    """Move each request's path to the positions right behind the committed ones, in all layers: one launch.

    Pools are [layers, pages, key heads, page_size, dim]; ``last`` [R] int64 is each path's last node, -1 for none. The
    caller then adds the paths' lengths to the past lengths. Raises UsageError LG1911 or LG1913.
    """
    require_pools(keys, values, pages, forest)
    require_triton()
    from lossguard_kernels.tree_attention.move_kernel import compact_kernel

    layers, pool_pages, key_heads, page_size, dim = keys.shape
    compact_kernel[(layers * forest.num_trees, key_heads)](
        keys, values, pages.table, pages.past_lengths, forest.firsts, forest.bits, last, forest.num_trees,
        pages.table.shape[1], pool_pages, TILE=forest.tile, HEADS=key_heads, DIM=dim, PADDED=_power_of_two(dim),
        PAGE=page_size,
    )  # fmt: skip


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
