"""The values of a recording: prompts and replies, and the drafter's candidates at every position of every reply.

Row t of a reply holds what the drafter proposes for its tokens t, t + 1, ... once the tokens before t are committed;
the anchor, that is the last committed token, is reply token t - 1, or the prompt's last token for t = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
NO_TOKEN = -1
"""Stands past the end of a reply; equal to no candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a recording comes from."""

    target: str
    target_sha256: str
    drafter: str
    drafter_sha256: str
    vocab_size: int
    compute_dtype: str
    temperature: float
    seed: int
    prompts: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replies:
    """R prompts with their replies as token ids; T reply tokens in all, request by request.

    A reply keeps its stop token. ``clusters`` are the unit of the statistics, as in ``lossguard.records.Request``.
    """

    request_ids: tuple[str, ...]
    sets: tuple[str, ...]
    clusters: tuple[str, ...]
    prompt_ids: IntArray  # [tokens of all prompts]
    prompt_offsets: IntArray  # [R + 1], prompt i is offsets[i]:offsets[i + 1]
    reply_ids: IntArray  # [T]
    reply_offsets: IntArray  # [R + 1]

    @property
    def num_requests(self) -> int:
        """R."""
        return len(self.request_ids)

    @property
    def num_tokens(self) -> int:
        """T."""
        return int(self.reply_offsets[-1])

    @property
    def reply_lengths(self) -> IntArray:
        """[R] tokens of each reply."""
        return np.diff(self.reply_offsets)

    def prompt(self, request: int) -> IntArray:
        """Token ids of a prompt."""
        return self.prompt_ids[self.prompt_offsets[request] : self.prompt_offsets[request + 1]]

    def reply(self, request: int) -> IntArray:
        """Token ids of a reply."""
        return self.reply_ids[self.reply_offsets[request] : self.reply_offsets[request + 1]]

    def future(self, num_depths: int) -> IntArray:
        """[T, D] the tokens from each position on; ``NO_TOKEN`` past the reply's end."""
        places = np.arange(self.num_tokens)[:, None] + np.arange(num_depths)
        ends = np.repeat(self.reply_offsets[1:], self.reply_lengths)[:, None]
        tokens = self.reply_ids[np.minimum(places, max(self.num_tokens - 1, 0))]
        return np.where(places < ends, tokens, NO_TOKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lattices:
    """A drafter's candidates at N positions, D depths ahead, K of them best first. In nats, never above 0.

    ``log_probs`` are those of each depth by itself. ``edges`` are log q(candidate | candidate one depth before), the
    softmax of the drafter's pair scores times the share of all candidates in that depth's own distribution; they may
    cover fewer candidates, E of K. None where the drafter has no such thing.
    """

    ids: NDArray[np.int32]  # [N, D, K]
    log_probs: NDArray[np.float16]  # [N, D, K]
    chain: NDArray[np.int32]  # [N, D] the drafter's own greedy chain
    anchor_edges: NDArray[np.float16] | None = None  # [N, E] from the anchor to the candidates of depth 0
    edges: NDArray[np.float16] | None = None  # [N, D - 1, E, E] from depth d (third) to depth d + 1 (last)
    confidence: NDArray[np.float16] | None = None  # [N, D] chance that the chain is accepted to there, given all before

    @property
    def num_positions(self) -> int:
        """N."""
        return len(self.ids)

    @property
    def num_depths(self) -> int:
        """D."""
        return int(self.ids.shape[1])

    @property
    def num_candidates(self) -> int:
        """K."""
        return int(self.ids.shape[2])

    @property
    def num_edge_candidates(self) -> int:
        """E; 0 without edges."""
        return 0 if self.anchor_edges is None else int(self.anchor_edges.shape[1])

    def rows(self, part: slice) -> Lattices:
        """The same for some of the positions."""
        return Lattices(
            ids=self.ids[part],
            log_probs=self.log_probs[part],
            chain=self.chain[part],
            anchor_edges=None if self.anchor_edges is None else self.anchor_edges[part],
            edges=None if self.edges is None else self.edges[part],
            confidence=None if self.confidence is None else self.confidence[part],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Replies and the lattices at all of their T positions, row for row."""

    provenance: Provenance
    replies: Replies
    lattices: Lattices

    def of_request(self, request: int) -> Lattices:
        """The rows of one reply."""
        first, last = self.replies.reply_offsets[request : request + 2]
        return self.lattices.rows(slice(int(first), int(last)))
