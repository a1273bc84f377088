"""Best-first trees: of all paths through the candidates, the B most likely ones.

With log q(path) the sum of its steps' log-probabilities, the B best prefixes maximise the expected number of accepted
tokens under q, which is the sum of q over the nodes (DDTree, arXiv 2604.12989, for depths that are independent of each
other). A heap finds them one after the other; here whole layers are cut to their B best, for many positions at once.

Both give the same tree. Order nodes by log q, then depth, then place in their layer, where children of an earlier
parent come first and of one parent the better rank. No child comes before its parent, since no step adds to log q. So
if a node is among the B first of all, all nodes on its path are too, and each is among the B first of its own layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
ScoreArray = NDArray[np.float32]
ROOT = -1
NO_NODE = -2
_INDEX_BITS = np.uint64(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """N trees of at most B nodes, the root (the anchor) not counted, layer by layer, the best of a layer first.

    A place without a node has depth 0 and score -inf.
    """

    parents: IntArray  # [N, B] index of the parent, ``ROOT`` for children of the anchor, ``NO_NODE`` where none is
    depths: IntArray  # [N, B] from 1
    ranks: IntArray  # [N, B] which candidate of its depth a node is
    scores: ScoreArray  # [N, B] log q of the path, in nats


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Nodes of one depth, of which the selection takes some."""

    scores: ScoreArray  # [N, W]
    parents: IntArray  # [N, W] place in the layer before
    ranks: IntArray  # [N, W]


def best_first_trees(first: ScoreArray, steps: ScoreArray, num_nodes: int) -> Trees:
    """The trees of the ``num_nodes`` best paths.

    ``first`` [N, K] is log q of the candidates of depth 1, ``steps`` [N, D - 1, K, K] from each candidate of a depth to
    each of the next; all at most 0, -inf where there is no such step.
    """
    ranks = best_places(first, num_nodes)
    scores = np.take_along_axis(first, ranks, axis=1)
    layers = [Layer(scores=scores, parents=np.full_like(ranks, ROOT), ranks=ranks)]
    for depth in range(steps.shape[1]):
        layers.append(_next_layer(layers[-1], steps[:, depth], num_nodes))
    return best_of_layers(layers, num_nodes)


def num_accepted(trees: Trees, true_ranks: IntArray) -> IntArray:
    """[N] how many nodes of each tree lie on the path of the true tokens.

    ``true_ranks`` [N, D] is the place of the true token among its depth's candidates, K or more where it is none.
    """
    current = np.full(len(true_ranks), ROOT)
    count = np.zeros(len(true_ranks), dtype=np.int64)
    for depth in range(true_ranks.shape[1]):
        hits = (trees.depths == depth + 1) & (trees.parents == current[:, None])
        hits &= trees.ranks == true_ranks[:, depth, None]
        found = hits.any(axis=1)
        current = np.where(found, hits.argmax(axis=1), NO_NODE - 1)
        count += found
    return count


def best_places(scores: ScoreArray, count: int) -> IntArray:
    """[N, min(count, M)] places of the largest of ``scores`` [N, M] (at most 0), best first, ties by lower place.

    Scores become integers whose order is theirs reversed, with the place in the low bits: no two are equal, so that a
    partition is as good as a stable sort.
    """
    keys = np.abs(scores).view(np.uint32).astype(np.uint64) << _INDEX_BITS
    keys |= np.arange(scores.shape[1], dtype=np.uint64)
    if count < keys.shape[1]:
        keys = np.partition(keys, count - 1, axis=1)[:, :count]
    keys.sort(axis=1)
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def _next_layer(layer: Layer, steps: ScoreArray, num_nodes: int) -> Layer:
    num_candidates = steps.shape[2]
    rows = np.take_along_axis(steps, layer.ranks[:, :, None], axis=1)  # [N, W, K]
    scores = (layer.scores[:, :, None] + rows).reshape(len(rows), -1)
    chosen = best_places(scores, num_nodes)
    return Layer(
        scores=np.take_along_axis(scores, chosen, axis=1),
        parents=chosen // num_candidates,
        ranks=chosen % num_candidates,
    )


def best_of_layers(layers: Sequence[Layer], num_nodes: int) -> Trees:
    """The ``num_nodes`` best of all nodes: by score, then by depth, then by place in the layer."""
    widths = [layer.scores.shape[1] for layer in layers]
    starts = np.concatenate([[0], np.cumsum(widths)])
    depth_of_place = np.repeat(np.arange(1, len(layers) + 1), widths)
    parent_starts = np.repeat(np.concatenate([[0], starts[:-2]]), widths)
    scores = np.concatenate([layer.scores for layer in layers], axis=1)
    chosen = np.sort(best_places(scores, num_nodes), axis=1)  # places count layer by layer
    kept = np.take_along_axis(scores, chosen, axis=1)
    is_node = kept > -np.inf

    new_place = np.full(scores.shape, NO_NODE)
    np.put_along_axis(new_place, chosen, np.broadcast_to(np.arange(chosen.shape[1]), chosen.shape), axis=1)
    old_parents = np.concatenate([layer.parents for layer in layers], axis=1) + parent_starts
    parents = np.take_along_axis(new_place, np.take_along_axis(old_parents, chosen, axis=1).clip(min=0), axis=1)
    depths = depth_of_place[chosen]
    parents = np.where(depths == 1, ROOT, parents)
    ranks = np.take_along_axis(np.concatenate([layer.ranks for layer in layers], axis=1), chosen, axis=1)
    return Trees(
        parents=np.where(is_node, parents, NO_NODE),
        depths=np.where(is_node, depths, 0),
        ranks=ranks,
        scores=kept,
    )
