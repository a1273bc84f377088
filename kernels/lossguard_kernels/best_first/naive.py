"""Best-first trees with a heap, in float32 as the kernel adds."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class NaiveNode:
    """A drafted node: its parent's number (0: the anchor), its depth from 1, and which candidate of its depth it is."""

    parent: int
    depth: int
    rank: int


def grow(first: Scores, steps: Scores, num_drafts: int) -> list[NaiveNode]:
    """The ``num_drafts`` best paths of one sequence, numbered from 1 by depth and, within one, by their turn.

    ``first`` [K] and ``steps`` [D - 1, K, K] as for ``operation.grow``.
    Ties go by depth, by the parent's turn, by rank.
    """
    heap = [(-float(score), 1, 0, rank) for rank, score in enumerate(first)]
    heapq.heapify(heap)
    taken: list[tuple[int, int, int]] = []
    for turn in range(1, num_drafts + 1):
        cost, depth, parent, rank = heapq.heappop(heap)
        taken.append((parent, depth, rank))
        if depth <= len(steps):
            sums = np.float32(-cost) + steps[depth - 1, rank]
            for child, score in enumerate(sums):
                heapq.heappush(heap, (-float(score), depth + 1, turn, child))
    return _numbered(taken)


def ancestors_of(nodes: Sequence[NaiveNode]) -> NDArray[np.bool_]:
    """[N, N] with the anchor: node j is node i or an ancestor of it."""
    table = np.eye(len(nodes) + 1, dtype=bool)
    for number, node in enumerate(nodes, start=1):
        table[number] |= table[node.parent]
    return table


def _numbered(taken: Sequence[tuple[int, int, int]]) -> list[NaiveNode]:
    order = sorted(range(len(taken)), key=lambda turn: (taken[turn][1], turn))
    number = {turn + 1: place + 1 for place, turn in enumerate(order)} | {0: 0}
    return [NaiveNode(parent=number[taken[turn][0]], depth=taken[turn][1], rank=taken[turn][2]) for turn in order]
