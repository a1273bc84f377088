"""Errors of kernels over trees, each in one place (docs/errors/trees.md)."""

from __future__ import annotations

from lossguard.errors import UsageError


def too_many_nodes(found: int, limit: int, what: str) -> UsageError:
    """More nodes than a word of ancestors has bits."""
    return UsageError(
        f"a tree of {found:,} nodes is asked for, and {what} {limit:,}",
        why="a tree that is cut in silence would verify other tokens than the policy chose",
        fix=f"ask for at most {limit:,} nodes",
        code="LG1901",
    )


def no_tree(problem: str) -> UsageError:
    """Parents that are no tree with its nodes in order."""
    return UsageError(
        f"the parents are no tree whose nodes come after their parents: {problem}",
        why="verification and commit go through the nodes in order, and would read states that do not exist yet",
        fix="give roots the parent -1, and put every other node after its parent",
        code="LG1902",
    )


def wrong_tensors(problem: str) -> UsageError:
    """Tensors that a kernel over trees cannot take."""
    return UsageError(
        f"the tensors do not fit the kernel: {problem}",
        why="kernels compute addresses from these sizes and would read or write what belongs to others",
        fix="see the shapes and dtypes in the operation's docstring; docs/tree-kernels.md has the limits",
        code="LG1911",
    )


def no_room(rows: int, capacity: int) -> UsageError:
    """More deferred rows than a buffer holds."""
    return UsageError(
        f"up to {rows} deferred rows of a sequence, and the buffer holds {capacity}",
        why="rows beyond the buffer would be missing from the state, and every later token would be wrong",
        fix="fold the deferred rows into the states before the next commit, or make the buffer larger (at most 64)",
        code="LG1912",
    )


def missing_triton() -> UsageError:
    """No triton."""
    return UsageError(
        "the package triton is not installed",
        why="the kernels over trees are written in it",
        fix="install it (CUDA builds of torch bring it along), or ask for backend='torch'",
        code="LG1913",
    )
