"""EAGLE-2's dynamic tree on a lattice: expand the best few nodes of each layer, then keep the best of all.

Of every layer the ``width`` best nodes are expanded, each into its ``width`` best children; of all nodes that came into
being the B with the largest log q are kept (arXiv 2406.16858, section 4). A parent never scores below its child and
comes before it among equals, so that what is kept is a tree. Best-first is the same without the bound on width.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lossguard_mechanisms.trees.best_first import ROOT, Layer, ScoreArray, Trees, best_of_layers, best_places

WIDTH: Final = 8
"""Of EAGLE-2's published trees: 8 to 10 of each layer are expanded."""


def dynamic_trees(first: ScoreArray, steps: ScoreArray, num_nodes: int, *, width: int = WIDTH) -> Trees:
    """Trees of at most ``num_nodes`` nodes; ``first`` and ``steps`` as for ``best_first.best_first_trees``."""
    ranks = best_places(first, width)
    layers = [Layer(scores=np.take_along_axis(first, ranks, axis=1), parents=np.full_like(ranks, ROOT), ranks=ranks)]
    for depth in range(steps.shape[1]):
        layers.append(_next_layer(layers[-1], steps[:, depth], width))
    return best_of_layers(layers, num_nodes)


def _next_layer(layer: Layer, steps: ScoreArray, width: int) -> Layer:
    """Children of the ``width`` best nodes, parent by parent."""
    expanded = best_places(layer.scores, width)  # [N, W]
    scores = np.take_along_axis(layer.scores, expanded, axis=1)
    ranks = np.take_along_axis(layer.ranks, expanded, axis=1)
    rows = np.take_along_axis(steps, ranks[:, :, None], axis=1)  # [N, W, K]
    number, num_parents, num_candidates = rows.shape
    kept = best_places(rows.reshape(-1, num_candidates), width).reshape(number, num_parents, -1)
    grown = scores[:, :, None] + np.take_along_axis(rows, kept, axis=2)
    parents = np.broadcast_to(expanded[:, :, None], grown.shape)
    return Layer(scores=grown.reshape(number, -1), parents=parents.reshape(number, -1), ranks=kept.reshape(number, -1))
