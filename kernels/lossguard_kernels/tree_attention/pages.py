"""Where keys and values of requests lie: pages of a pool, named by a table."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard_kernels.forests.failures import too_many_nodes, wrong_tensors
from lossguard_kernels.forests.forest import MAX_NODES, Forest
from lossguard_kernels.forests.strides import heads_lie_together

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_DIMS = range(16, 257, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """R requests: position p of request r lies at place p % page_size of page ``table[r, p // page_size]``.

    Node j of a request's tree lies at position ``past_lengths[r] + j``, whatever its depth.
    """

    table: Tensor  # [R, P] int64
    past_lengths: Tensor  # [R] int64: committed positions


def require_attention(query: Tensor, keys: Tensor, values: Tensor, pages: PageTable, forest: Forest) -> None:
    """Raises UsageError LG1901 (nodes) or LG1911 (everything else)."""
    if not 0 < forest.most_nodes <= MAX_NODES:
        raise too_many_nodes(forest.most_nodes, MAX_NODES, "the kernel takes")
    problem = _problem(query, keys, values) or _table_problem(pages, forest, query.shape[0])
    if problem:
        raise wrong_tensors(problem)


def require_pools(keys: Tensor, values: Tensor, pages: PageTable, forest: Forest) -> None:
    """Raises UsageError LG1911 unless both are [layers, pages, key heads, page_size, dim]."""
    if keys.dim() != 5 or keys.shape != values.shape or not (keys.is_contiguous() and values.is_contiguous()):
        raise wrong_tensors(f"pools of all layers {list(keys.shape)} and {list(values.shape)}")
    problem = _table_problem(pages, forest, forest.bits.shape[0])
    if problem:
        raise wrong_tensors(problem)


def _problem(query: Tensor, keys: Tensor, values: Tensor) -> str | None:
    if keys.dim() != 4 or keys.shape != values.shape or not (keys.is_contiguous() and values.is_contiguous()):
        return f"pools {list(keys.shape)} and {list(values.shape)}, which must be alike and contiguous"
    _, key_heads, _, dim = keys.shape
    if query.dim() != 3 or query.shape[2] != dim or query.shape[1] % key_heads:
        return f"queries {list(query.shape)} over {key_heads} heads of {dim} channels"
    if dim not in _DIMS:
        return f"heads of {dim} channels, where multiples of 16 from {_DIMS.start} to {_DIMS.stop - 1} are taken"
    if query.dtype not in _DTYPES or keys.dtype != query.dtype or values.dtype != query.dtype:
        return f"queries are {query.dtype}, keys {keys.dtype}, values {values.dtype}"
    if not heads_lie_together(query):
        return "heads of queries do not lie together"
    return None


def _table_problem(pages: PageTable, forest: Forest, num_rows: int) -> str | None:
    requests = forest.num_trees
    if pages.table.dim() != 2 or pages.table.shape[0] != requests or pages.past_lengths.shape != (requests,):
        return f"a table {list(pages.table.shape)} and {list(pages.past_lengths.shape)} lengths for {requests} requests"
    if not pages.table.is_contiguous() or {pages.table.dtype, pages.past_lengths.dtype} != {torch.int64}:
        return "the table and the lengths must be contiguous int64"
    if not pages.table.shape[1]:
        return "a table without pages, where even nodes alone need one"
    if forest.bits.shape != (num_rows,):
        return f"{num_rows} rows and {forest.bits.shape[0]} words of ancestors"
    return None
