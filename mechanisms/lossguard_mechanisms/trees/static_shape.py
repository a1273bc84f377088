"""A tree whose shape is fixed before anything is drafted: the baseline of trees that follow probabilities.

A node is the path of ranks that leads to it. The B nodes are those that a fixed prior finds most likely: the best
candidate is right with probability 0.6 at every depth, the one of rank r with 0.4 / 2^r.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from lossguard_mechanisms.trees.best_first import IntArray

TOP_PROBABILITY = 0.6

Path = tuple[int, ...]


def static_paths(num_nodes: int, *, num_depths: int, num_candidates: int) -> list[Path]:
    """The paths of the ``num_nodes`` most likely nodes, best first; all there are if there are fewer.

    Every path comes after the path to its parent, and more nodes only add to fewer.
    """
    heap = [_entry((0,))]
    paths: list[Path] = []
    while heap and len(paths) < num_nodes:
        path = heapq.heappop(heap)[-1]
        paths.append(path)
        if len(path) < num_depths:
            heapq.heappush(heap, _entry((*path, 0)))
        if path[-1] + 1 < num_candidates:
            heapq.heappush(heap, _entry((*path[:-1], path[-1] + 1)))
    return paths


def num_accepted_by_paths(paths: list[Path], true_ranks: IntArray) -> IntArray:
    """[N] how many nodes on the path of the true tokens the tree has; ``true_ranks`` as in ``best_first``."""
    children: dict[int, list[tuple[int, int]]] = {}
    places = {(): 0} | {path: place for place, path in enumerate(paths, start=1)}
    for path, place in places.items():
        if path:
            children.setdefault(places[path[:-1]], []).append((path[-1], place))
    width = 1 + max(path[-1] for path in paths)
    table = np.zeros((len(places), width + 1), dtype=np.int64)  # [node, rank] child, 0 for none
    for place, entries in children.items():
        for rank, child in entries:
            table[place, rank] = child
    current = np.zeros(len(true_ranks), dtype=np.int64)
    alive = np.ones(len(true_ranks), dtype=bool)
    count = np.zeros(len(true_ranks), dtype=np.int64)
    for ranks in true_ranks.T:
        current = table[current, np.minimum(ranks, width)]
        alive &= current > 0
        count += alive
    return count


def _entry(path: Path) -> tuple[float, int, Path]:
    num_best = sum(rank == 0 for rank in path)
    others = len(path) - num_best
    log_prior = num_best * math.log(TOP_PROBABILITY) + others * math.log(1 - TOP_PROBABILITY)
    return -(log_prior - sum(path) * math.log(2.0)), len(path), path
