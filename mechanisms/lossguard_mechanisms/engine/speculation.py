"""Speculation as a plug-in: draft, build a tree, verify, accept, commit. Each stage sees values, not the engine.

lattice = drafter.draft(state, rows, anchors)        # candidates per depth          (drafters)
tree    = policy.build(lattice, anchors)             # a chain, or a real tree       (trees.policies)
logits  = one pass of the target over all nodes      # states are read, not changed  (verification)
path    = acceptance.walk(tree, chosen)              # follow the target's own tokens (trees.matching)
commit(path)                                         # the only change of states     (commit)
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.trees.matching import SampleAndMatch
from lossguard_mechanisms.trees.policies import ChainPolicy
from lossguard_mechanisms.trees.tree import Path, Tree

__all__ = ["Acceptance", "ChainPolicy", "Policy", "SampleAndMatch"]


class Policy(Protocol):
    """What is verified of what a drafter names."""

    @property
    def num_nodes(self) -> int:
        """N of its trees, with the anchor: fixed, so that memory and graphs can be."""

    @property
    def num_depths(self) -> int | None:
        """How far ahead the drafter is asked to look; None: as far as it can."""

    def build(self, lattice: Lattice, anchors: Tensor) -> Tree:
        """A tree of ``num_nodes`` nodes for each of the B sequences, rooted at ``anchors`` [B]."""


class Acceptance(Protocol):
    """Which nodes of a verified tree become tokens of the reply."""

    def walk(self, tree: Tree, chosen: Tensor) -> Path:
        """``chosen`` [B, N]: the token that the target chooses after each node, greedily or by its request's draw."""
