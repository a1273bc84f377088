"""Errors of this package, each in one place (docs/errors/trees.md)."""

from __future__ import annotations

from lossguard.errors import UsageError
from lossguard_kernels.forests.failures import too_many_nodes

__all__ = ["no_pair_scores", "no_tree", "too_deep", "too_many_nodes"]


def no_tree(problem: str) -> UsageError:
    """Parents that are no tree with its nodes in order."""
    return UsageError(
        f"the parents are no tree whose nodes come after their parents: {problem}",
        why="verification and commit go through the nodes in order, and would read states that do not exist yet",
        fix="put the anchor first with parent -1, and every other node after its parent",
        code="LG1902",
    )


def too_deep(depth: int, num_depths: int) -> UsageError:
    """A depth for which the drafter names no candidates."""
    return UsageError(
        f"the tree reaches depth {depth}, and the lattice names candidates for {num_depths}",
        why="beyond the last depth there is nothing to verify",
        fix=f"keep the depth to {num_depths}, or use a drafter that looks further ahead",
        code="LG1903",
    )


def no_pair_scores(policy: str, lattice: str) -> UsageError:
    """A policy on edges and a lattice without any."""
    return UsageError(
        f"the policy {policy!r} goes by scores of pairs of candidates, and {lattice} has none",
        why="without them its tree would be that of another policy under its name",
        fix="take ddtree, or a drafter that scores pairs",
        code="LG1904",
    )
