"""Trees node by node, for comparison: all paths in order, and a heap."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

Path = tuple[int, ...]


def all_paths_in_order(first: np.ndarray, steps: np.ndarray) -> list[tuple[Path, np.float32]]:
    """Every path of one position with its score: by score, then depth, then place in its layer."""
    layer: list[tuple[Path, np.float32]] = [((rank,), first[rank]) for rank in range(len(first))]
    layer.sort(key=lambda entry: (-entry[1], entry[0]))
    everything = list(layer)
    for table in steps:
        grown = [
            (-(score + table[path[-1], rank]), place, rank, path)
            for place, (path, score) in enumerate(layer)
            for rank in range(len(first))
        ]
        layer = [((*path, rank), -negative) for negative, _, rank, path in sorted(grown)]
        everything += layer
    return sorted(everything, key=lambda entry: (-entry[1], len(entry[0])))  # stable: a layer keeps its order


def paths_by_heap(first: np.ndarray, steps: np.ndarray, num_nodes: int) -> set[Path]:
    """The best paths, one after the other; for scores that are all different."""
    heap: list[tuple[np.float32, Path]] = [(-first[rank], (rank,)) for rank in range(len(first))]
    heapq.heapify(heap)
    found: set[Path] = set()
    while heap and len(found) < num_nodes:
        negative, path = heapq.heappop(heap)
        found.add(path)
        if len(path) <= len(steps):
            for rank in range(len(first)):
                heapq.heappush(heap, (negative - steps[len(path) - 1][path[-1], rank], (*path, rank)))
    return found


def num_accepted_slowly(paths: set[Path], true_ranks: Sequence[int]) -> int:
    """How many tokens of the true path have a node."""
    count = 0
    while count < len(true_ranks) and tuple(true_ranks[: count + 1]) in paths:
        count += 1
    return count
