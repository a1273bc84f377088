"""Policies: which of a drafter's candidates are verified together. Each makes trees of one fixed size."""

from __future__ import annotations

import torch
from torch import Tensor

from lossguard_kernels.best_first import operation as growth
from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.trees.beam import Nodes, best_first, cut_depth, dynamic, require_capacity, step_scores
from lossguard_mechanisms.trees.dynamic import WIDTH
from lossguard_mechanisms.trees.failures import too_many_nodes
from lossguard_mechanisms.trees.static_shape import static_paths
from lossguard_mechanisms.trees.tree import MAX_NODES, Tree, chain, tree_of


class ChainPolicy:
    """The drafter's own chain of ``num_drafts`` tokens, as released systems verify it."""

    def __init__(self, num_drafts: int) -> None:
        assert num_drafts > 0, "a chain has drafts"
        self.num_nodes = num_drafts + 1
        self.num_depths: int | None = num_drafts

    def build(self, lattice: Lattice, anchors: Tensor) -> Tree:
        """``anchors`` [B] and the chains of their lattices."""
        return chain(anchors, lattice.chain[:, : self.num_nodes - 1])


class BestFirstPolicy:
    """The ``num_drafts`` most likely paths.

    By the candidates' own probabilities (DDTree), or with ``on_edges`` by those of each candidate given the one before
    it (DFlash2, DSpark). ``has_kernel`` (None: wherever it runs) grows them in one launch; they are the same trees.
    """

    def __init__(
        self, num_drafts: int, *, on_edges: bool, num_depths: int | None = None, has_kernel: bool | None = None
    ) -> None:
        self.num_nodes = _with_anchor(num_drafts)
        self._on_edges, self.num_depths, self._has_kernel = on_edges, num_depths, has_kernel

    def build(self, lattice: Lattice, anchors: Tensor) -> Tree:
        """Raises UsageError LG1901 (nodes), LG1903 (depth)."""
        seen = cut_depth(lattice, self.num_depths)
        first, steps = step_scores(seen, on_edges=self._on_edges)
        num_drafts, has_kernel = self.num_nodes - 1, self._has_kernel
        require_capacity(num_drafts, num_depths=seen.num_depths, num_candidates=first.shape[1])
        if growth.runs_on(seen.ids) if has_kernel is None else has_kernel:
            return _tree_of_growth(growth.grow(first, steps, seen.ids, anchors, num_drafts), seen.num_depths)
        return tree_of_nodes(seen, anchors, best_first(first, steps, num_drafts))


class DynamicPolicy:
    """EAGLE-2's tree: the ``width`` best of each layer are expanded, the ``num_drafts`` best of all are kept."""

    def __init__(self, num_drafts: int, *, on_edges: bool, num_depths: int | None = None, width: int = WIDTH) -> None:
        self.num_nodes = _with_anchor(num_drafts)
        self._on_edges, self.num_depths, self._width = on_edges, num_depths, width

    def build(self, lattice: Lattice, anchors: Tensor) -> Tree:
        """Raises UsageError LG1901 (nodes), LG1903 (depth)."""
        seen = cut_depth(lattice, self.num_depths)
        first, steps = step_scores(seen, on_edges=self._on_edges)
        return tree_of_nodes(seen, anchors, dynamic(first, steps, self.num_nodes - 1, width=self._width))


class StaticPolicy:
    """A tree whose shape follows from ranks alone (Sequoia's kind): the paths that a fixed prior finds most likely."""

    def __init__(self, num_drafts: int, *, num_depths: int | None = None) -> None:
        self.num_nodes = _with_anchor(num_drafts)
        self.num_depths = num_depths
        self._shapes: dict[tuple[int, int, torch.device], Tensor] = {}  # copied to a device once

    def build(self, lattice: Lattice, anchors: Tensor) -> Tree:
        """Raises UsageError LG1901 (nodes), LG1903 (depth)."""
        seen = cut_depth(lattice, self.num_depths)
        batch, depths, candidates = seen.ids.shape
        key = (depths, candidates, seen.ids.device)
        if key not in self._shapes:
            self._shapes[key] = torch.tensor(self._shape(depths, candidates), device=seen.ids.device)
        parents, own_depths, ranks = self._shapes[key][:, None].expand(-1, batch, -1)
        scores = torch.zeros(ranks.shape, device=seen.ids.device)
        return tree_of_nodes(seen, anchors, Nodes(parents=parents, depths=own_depths, ranks=ranks, scores=scores))

    def _shape(self, num_depths: int, num_candidates: int) -> list[list[int]]:
        """Parents, depths and ranks of all nodes."""
        require_capacity(self.num_nodes - 1, num_depths=num_depths, num_candidates=num_candidates)
        paths = static_paths(self.num_nodes - 1, num_depths=num_depths, num_candidates=num_candidates)
        place = {path: at for at, path in enumerate(paths)}
        return [
            [place.get(path[:-1], -1) for path in paths],
            [len(path) for path in paths],
            [path[-1] for path in paths],
        ]


def tree_of_nodes(lattice: Lattice, anchors: Tensor, nodes: Nodes) -> Tree:
    """The anchor, then the nodes with their candidates' tokens."""
    batch, num_candidates = anchors.shape[0], lattice.ids.shape[2]
    place = (nodes.depths - 1) * num_candidates + nodes.ranks
    tokens = torch.cat((anchors[:, None], lattice.ids.flatten(1).gather(1, place)), dim=1)
    none = torch.full((batch, 1), -1, dtype=nodes.parents.dtype, device=anchors.device)
    parents = torch.cat((none, nodes.parents + 1), dim=1)
    return tree_of(tokens, parents, max_depth=lattice.num_depths)


def _tree_of_growth(grown: growth.Growth, num_depths: int) -> Tree:
    return Tree(
        tokens=grown.tokens,
        parents=grown.parents,
        depths=grown.depths,
        ancestors=grown.ancestors,
        is_chain=False,
        longest_path=min(grown.tokens.shape[1], num_depths + 1),
    )


def _with_anchor(num_drafts: int) -> int:
    if not 0 < num_drafts < MAX_NODES:
        raise too_many_nodes(num_drafts, MAX_NODES - 1, "beside its anchor a tree holds 1 to")
    return num_drafts + 1
