"""Speculation as a plug-in: draft, build a tree, verify, accept, commit. Each stage sees values, not the engine.

lattice = drafter.draft(state, rows, anchors)        # candidates per depth          (drafters)
tree    = policy.build(lattice, anchors)             # a chain, or a real tree       (here: ChainPolicy)
logits  = one pass of the target over all nodes      # states are read, not changed  (verification)
path    = acceptance.walk(tree, chosen)              # here: follow the target's own tokens
commit(path)                                         # the only change of states     (commit)
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.engine.tree import Path, Tree, chain


class Policy(Protocol):
    """What is verified of what a drafter names."""

    @property
    def num_nodes(self) -> int:
        """N of its trees, with the anchor: fixed, so that memory and graphs can be."""

    def build(self, lattice: Lattice, anchors: Tensor) -> Tree:
        """A tree of ``num_nodes`` nodes for each of the B sequences, rooted at ``anchors`` [B]."""


class Acceptance(Protocol):
    """Which nodes of a verified tree become tokens of the reply."""

    def walk(self, tree: Tree, chosen: Tensor) -> Path:
        """``chosen`` [B, N]: the token that the target chooses after each node, greedily or by its request's draw."""


class ChainPolicy:
    """The drafter's own chain of ``num_drafts`` tokens, as released systems verify it."""

    def __init__(self, num_drafts: int) -> None:
        assert num_drafts > 0, "a chain has drafts"
        self.num_nodes = num_drafts + 1

    def build(self, lattice: Lattice, anchors: Tensor) -> Tree:
        """See ``Policy``."""
        return chain(anchors, lattice.chain[:, : self.num_nodes - 1])


class SampleAndMatch:
    """Follow the child that carries the target's own token, as long as there is one.

    The token at each position is the target's choice given the tokens before it: its argmax, or its draw with the
    number that belongs to that position. It does not depend on the tree, so any tree, however chosen, emits the
    same tokens.
    """

    def walk(self, tree: Tree, chosen: Tensor) -> Path:
        """See ``Acceptance``."""
        if tree.is_chain:
            matches = tree.tokens[:, 1:] == chosen[:, :-1]
            num_nodes = 1 + matches.long().cumprod(dim=1).sum(dim=1)
            nodes = torch.arange(tree.num_nodes, device=chosen.device).expand_as(chosen)
            return Path(nodes=nodes, num_nodes=num_nodes, emitted=chosen)
        on_path = _on_path(tree, chosen)
        num_nodes = on_path.sum(dim=1)
        nodes = (~on_path).long().sort(dim=1, stable=True).indices  # nodes of a path ascend: parents come first
        return Path(nodes=nodes, num_nodes=num_nodes, emitted=chosen.gather(1, nodes))


def _on_path(tree: Tree, chosen: Tensor) -> Tensor:
    """[B, N] bool: a node is on the path if its parent is, and the target chose its token there.

    Siblings carry different tokens, so that at most one of them matches.
    """
    on_path = torch.zeros_like(tree.tokens, dtype=torch.bool)
    on_path[:, 0] = True
    for node in range(1, tree.num_nodes):
        parent = tree.parents[:, node, None]
        matches = chosen.gather(1, parent)[:, 0] == tree.tokens[:, node]
        on_path[:, node] = on_path.gather(1, parent)[:, 0] & matches
    return on_path
