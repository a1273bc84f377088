"""Trees of every kind, inputs of a delta layer for them, and what the reference says."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard_kernels.wy_verify import naive
from lossguard_kernels.wy_verify.rows import DeltaRows

KINDS = ("chain", "star", "random", "deep", "binary", "roots")


def parents_of(kind: str, size: int, seed: int = 0) -> list[int]:
    """Of a tree; ``roots``: several trees that all follow the committed state."""
    draw = random.Random(seed)
    choices: dict[str, Callable[[int], int]] = {
        "chain": lambda node: node - 1,
        "star": lambda node: 0,
        "random": lambda node: draw.randrange(node),
        "deep": lambda node: max(0, node - 1 - draw.randrange(3)),
        "binary": lambda node: (node - 1) // 2,
        "roots": lambda node: draw.randrange(-1, node),
    }
    return [-1, *(choices[kind](node) for node in range(1, size))][:size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a delta layer."""

    key_heads: int = 1
    heads: int = 2
    key_dim: int = 32
    value_dim: int = 16


def delta_rows(
    num: int, sizes: Sizes, *, seed: int = 0, aligned: bool = False, decay: float = 0.1, rates: float = 0.0
) -> DeltaRows:
    """Views into wide rows, as a layer has them. ``aligned``: all keys point the same way; ``rates``: least beta."""
    make = torch.Generator().manual_seed(seed)
    wide = 2 * sizes.key_heads * sizes.key_dim
    channels = torch.randn(num, wide + sizes.heads * sizes.value_dim, generator=make)
    if aligned:
        channels[:, : wide // 2] = channels[:1, : wide // 2]
    key, query, value = channels.split((wide // 2, wide // 2, channels.shape[1] - wide), dim=1)
    beta = torch.rand(num, sizes.heads, generator=make)
    return DeltaRows(
        query=query.unflatten(1, (sizes.key_heads, -1)),
        key=key.unflatten(1, (sizes.key_heads, -1)),
        value=value.unflatten(1, (sizes.heads, -1)),
        log_decay=-decay * torch.rand(num, sizes.heads, generator=make),
        beta=rates + (1 - rates) * beta,
    )


def as_dtype(rows: DeltaRows, dtype: torch.dtype) -> DeltaRows:
    """The same rounded; log decays stay float32."""
    return DeltaRows(
        query=rows.query.to(dtype),
        key=rows.key.to(dtype),
        value=rows.value.to(dtype),
        log_decay=rows.log_decay,
        beta=rows.beta.to(dtype),
    )


def part_of(rows: DeltaRows, begin: int, count: int) -> DeltaRows:
    """Rows of one tree."""
    own = slice(begin, begin + count)
    return DeltaRows(
        query=rows.query[own],
        key=rows.key[own],
        value=rows.value[own],
        log_decay=rows.log_decay[own],
        beta=rows.beta[own],
    )


def reference(rows: DeltaRows, parents: Sequence[Sequence[int]], states: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Outputs [rows, heads, value_dim] and the states after every node of every tree, in float64."""
    outputs, after, begin = [], [], 0
    for tree, state in zip(parents, states, strict=True):
        if tree:
            output, ended = naive.recur(part_of(rows, begin, len(tree)), tree, state)
            outputs.append(output)
        after.append(ended if tree else torch.empty(0))
        begin += len(tree)
    return torch.cat(outputs), after


def relative(found: Tensor, expected: Tensor) -> float:
    """Largest error beside the largest entry."""
    return float((found.double() - expected).abs().max() / expected.abs().max())
