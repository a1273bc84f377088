"""What a drafter gives: candidates for the positions after the last committed token, and its own chain through them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

TOP_K = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Lattice:
    """A drafter's candidates for the next D positions of B sequences.

    Depth 0 is the position after the anchor, which is the last committed token. K is ``TOP_K``, or the vocabulary
    where that is smaller.
    """

    ids: Tensor
    """[B, D, K] int64, best first by ``log_probs``."""
    log_probs: Tensor
    """[B, D, K] float32, log q over the whole vocabulary at temperature 1: the marginal of the depth (EAGLE-3: of the
    depth along its own chain)."""
    chain: Tensor
    """[B, D] int64, the drafter's own greedy chain (DFlash2: walk over the edges; DSpark: serial Markov head; EAGLE-3:
    recursion)."""
    edges: Tensor | None
    """[B, D, K, K] float32 logits: ``edges[b, d, p, c]`` is for candidate c of depth d after candidate p of depth
    d - 1; depth 0 has one predecessor, the anchor, whose row is p = 0 (the other rows repeat it). None for EAGLE-3."""
    confidence: Tensor | None
    """[B, D] float32 in 0 .. 1, DSpark: the chance that depth d of the chain is accepted given those before."""

    @property
    def num_depths(self) -> int:
        """D."""
        return self.ids.shape[1]
