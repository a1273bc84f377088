"""Which drafted tokens a step would have verified, and how many of them the target's own tokens confirm.

Every policy is a pure function of lattices and the tokens that followed. For all positions at once it says how many
drafted tokens a step there would have accepted; ``walk`` then goes only through those where a step begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lossguard_mechanisms.replay.recording import IntArray, Lattices, Recording
from lossguard_mechanisms.trees import names
from lossguard_mechanisms.trees.best_first import ScoreArray, best_first_trees, num_accepted
from lossguard_mechanisms.trees.dynamic import dynamic_trees
from lossguard_mechanisms.trees.static_shape import num_accepted_by_paths, static_paths

ORACLE = "oracle"
POLICIES = (*names.POLICIES, ORACLE)
_POSITIONS_AT_ONCE = 1024  # of B * K * 8 bytes of keys each: 8 MB at 64 nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Lattices at N positions and what the target said there."""

    lattices: Lattices
    future: IntArray  # [N, D] true tokens, ``NO_TOKEN`` past the reply's end
    true_ranks: IntArray  # [N, D] place of the true token among the candidates, K where it is none


class Policy(Protocol):
    """A rule that builds the tree of a step from the lattice at its position."""

    @property
    def name(self) -> str:
        """One of ``POLICIES``."""

    @property
    def num_nodes(self) -> int | None:
        """Drafted tokens that a step verifies at most; None for the oracle, which no step could do."""

    @property
    def num_depths(self) -> int:
        """How far ahead it looks."""

    def accepted(self, positions: Positions) -> IntArray:
        """[N] drafted tokens that the target confirms at each position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The drafter's own greedy chain, as released systems verify it."""

    num_depths: int
    name: str = names.CHAIN

    @property
    def num_nodes(self) -> int:
        """Its length."""
        return self.num_depths

    def accepted(self, positions: Positions) -> IntArray:
        """See ``Policy``."""
        drafted, true = positions.lattices.chain[:, : self.num_depths], positions.future[:, : self.num_depths]
        return _leading(drafted == true)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFirst:
    """The B most likely paths; each depth by itself, or with ``on_edges`` each candidate given the one before."""

    num_nodes: int
    num_depths: int
    on_edges: bool
    name: str = names.BEST_FIRST

    def accepted(self, positions: Positions) -> IntArray:
        """See ``Policy``."""
        first, steps = step_scores(positions.lattices, on_edges=self.on_edges)
        return num_accepted(best_first_trees(first, steps, self.num_nodes), positions.true_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamic:
    """EAGLE-2's tree: the 8 best of each depth are expanded, of all their children the B best are kept."""

    num_nodes: int
    num_depths: int
    on_edges: bool
    name: str = names.DYNAMIC

    def accepted(self, positions: Positions) -> IntArray:
        """See ``Policy``."""
        first, steps = step_scores(positions.lattices, on_edges=self.on_edges)
        return num_accepted(dynamic_trees(first, steps, self.num_nodes), positions.true_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Static:
    """A tree of B nodes whose shape does not look at probabilities, only at ranks."""

    num_nodes: int
    num_depths: int
    num_candidates: int
    name: str = names.STATIC

    def accepted(self, positions: Positions) -> IntArray:
        """See ``Policy``."""
        paths = static_paths(self.num_nodes, num_depths=self.num_depths, num_candidates=self.num_candidates)
        return num_accepted_by_paths(paths, positions.true_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """Accepts as long as the true token is among the candidates of its depth: a bound for every tree on them."""

    num_depths: int
    name: str = ORACLE

    @property
    def num_nodes(self) -> None:
        """See ``Policy``."""
        return None

    def accepted(self, positions: Positions) -> IntArray:
        """See ``Policy``."""
        return _leading(positions.true_ranks[:, : self.num_depths] < positions.lattices.num_candidates)


def accepted_everywhere(recording: Recording, policy: Policy) -> IntArray:
    """[T] drafted tokens that a step at each position of each reply would accept."""
    parts = [policy.accepted(positions) for positions in positions_of(recording)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def positions_of(recording: Recording, *, at_once: int = _POSITIONS_AT_ONCE) -> Iterator[Positions]:
    """All positions of a recording in order, some at a time."""
    future = recording.replies.future(recording.lattices.num_depths)
    for begin in range(0, len(future), at_once):
        part = slice(begin, begin + at_once)
        lattices = recording.lattices.rows(part)
        hits = lattices.ids == future[part, :, None]
        ranks = np.where(hits.any(axis=2), hits.argmax(axis=2), lattices.num_candidates)
        yield Positions(lattices=lattices, future=future[part], true_ranks=ranks)


def step_scores(lattices: Lattices, *, on_edges: bool) -> tuple[ScoreArray, ScoreArray]:
    """log q of the first candidates [N, K] and of the steps between depths [N, D - 1, K, K].

    Without edges a step is worth the same from every candidate. Steps without a recorded edge are -inf.
    """
    shape = (lattices.num_positions, lattices.num_depths - 1, lattices.num_candidates, lattices.num_candidates)
    if not on_edges:
        own = lattices.log_probs.astype(np.float32)
        return own[:, 0], np.broadcast_to(own[:, 1:, None, :], shape)
    assert lattices.edges is not None, "a policy on edges was given none"
    assert lattices.anchor_edges is not None, "edges without those of the anchor"
    width = lattices.num_edge_candidates
    first = np.full((shape[0], shape[2]), -np.inf, dtype=np.float32)
    first[:, :width] = lattices.anchor_edges
    steps = np.full(shape, -np.inf, dtype=np.float32)
    steps[:, :, :width, :width] = lattices.edges
    return first, steps


def _leading(hits: np.ndarray) -> IntArray:
    """[N] how many entries of each row are true before the first that is not."""
    return np.asarray(np.logical_and.accumulate(hits, axis=1).sum(axis=1), dtype=np.int64)
