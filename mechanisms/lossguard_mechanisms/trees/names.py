"""Names of policies: the same words for replay, engine and reports. Standard library only."""

from __future__ import annotations

from typing import Final

CHAIN: Final = "chain"
DDTREE: Final = "ddtree"
BEST_FIRST: Final = "best-first"
DYNAMIC: Final = "eagle-2"
STATIC: Final = "static"

BY_SCORES: Final = (BEST_FIRST, DYNAMIC)
"""Policies on the drafter's own scores of a path: those of pairs of candidates, where it has any."""
TREES: Final = (DDTREE, BEST_FIRST, DYNAMIC, STATIC)
POLICIES: Final = (CHAIN, *TREES)

WITHOUT_EDGES: Final = ("eagle3",)
"""Drafters that score no pairs: each candidate's own probability is all that they say of it."""
