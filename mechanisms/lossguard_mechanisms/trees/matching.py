"""Acceptance by matching: the target chooses, and nodes that carry its choice are accepted. Exact for any tree."""

from __future__ import annotations

import torch
from torch import Tensor

from lossguard_mechanisms.trees.tree import Path, Tree


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
        nodes = nodes[:, : tree.longest_path]
        return Path(nodes=nodes, num_nodes=num_nodes, emitted=chosen.gather(1, nodes))


def _on_path(tree: Tree, chosen: Tensor) -> Tensor:
    """[B, N] bool: the target chose the token of a node and of all its ancestors, each after its own parent.

    Siblings carry different tokens, so that at most one of them matches.
    """
    after_parent = chosen.gather(1, tree.parents.clamp(min=0))
    is_chosen = after_parent == tree.tokens
    is_chosen[:, 0] = True
    return ~(tree.ancestors & ~is_chosen[:, None]).any(dim=2)
