"""The reference: every row by itself over what it may see, in float32 or wider."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lossguard_kernels.tree_attention.pages import PageTable


def attend(query: Tensor, keys: Tensor, values: Tensor, pages: PageTable, parents: Sequence[Sequence[int]]) -> Tensor:
    """``operation.attend`` in float64, with a mask that is made from ``parents`` instead of words of ancestors."""
    rows, begin = [], 0
    for request, tree in enumerate(parents):
        past = int(pages.past_lengths[request])
        k, v = (positions_of(pool, pages.table[request], past + len(tree)).double() for pool in (keys, values))
        groups = query.shape[1] // k.shape[0]
        seen = visible(tree, past).to(query.device)
        own = query[begin : begin + len(tree)].double().transpose(0, 1)  # [heads, N, dim]
        scores = own @ k.repeat_interleave(groups, 0).mT * query.shape[2] ** -0.5
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        rows.append((weights @ v.repeat_interleave(groups, 0)).transpose(0, 1))
        begin += len(tree)
    return torch.cat(rows)


def positions_of(pool: Tensor, table: Tensor, length: int) -> Tensor:
    """The first ``length`` positions of one request, [key heads, length, dim]; ``table`` [P]."""
    return pool[table].transpose(0, 1).flatten(1, 2)[:, :length]


def visible(parents: Sequence[int], past: int) -> Tensor:
    """[N, past + N] bool: all that is committed, ancestors, and the node itself."""
    size = len(parents)
    seen = torch.zeros(size, past + size, dtype=torch.bool)
    seen[:, :past] = True
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] = seen[parent]
        seen[node, past + node] = True
    return seen
