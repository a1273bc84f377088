"""A drafter whose proposals depend on every committed token, its features and the anchor, and on nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.rows import Rows

NUM_CANDIDATES = 6


@dataclass(frozen=True, slots=True)
class StubState:
    """A decaying sum of what was committed, and how much of it there is."""

    sums: Tensor  # [slots, vocabulary]
    counts: Tensor  # [slots]

    def reset(self, slots: Sequence[int] | Tensor) -> None:
        """See ``DrafterState``."""
        index = torch.as_tensor(slots)
        self.sums[index] = 0
        self.counts[index] = 0

    def copy(self, sources: Sequence[int] | Tensor, targets: Sequence[int] | Tensor) -> None:
        """See ``DrafterState``."""
        self.sums[torch.as_tensor(targets)] = self.sums[torch.as_tensor(sources)]
        self.counts[torch.as_tensor(targets)] = self.counts[torch.as_tensor(sources)]


class StubDrafter:
    """A ``Drafter`` of random matrices; ``has_pairs`` gives edges and confidence."""

    def __init__(self, target: Target, *, num_depths: int = 3, has_pairs: bool = True) -> None:
        self.name = "stub"
        self.num_depths = num_depths
        self.feature_layers = (0, target.config.num_layers - 1)
        self._has_pairs = has_pairs
        self._size = target.config.vocab_size
        generator = torch.Generator().manual_seed(7)
        width = len(self.feature_layers) * target.config.hidden_size
        self._read = torch.randn(width, self._size, generator=generator)
        self._anchor = torch.randn(self._size, self._size, generator=generator)
        self._depth = torch.randn(num_depths, self._size, generator=generator)
        self._pairs = torch.randn(self._size, self._size, generator=generator)

    def new_state(self, num_slots: int, capacity: int, *, dtype: torch.dtype, device: torch.device | str) -> StubState:
        """See ``Drafter``."""
        return StubState(torch.zeros(num_slots, self._size), torch.zeros(num_slots, dtype=torch.int64))

    def extend(self, state: StubState, rows: Rows, ids: Tensor, features: Tensor) -> None:
        """See ``Drafter``; token by token, and only where the state ends."""
        begun = 0
        for slot, past, length in zip(
            rows.slots.tolist(), rows.past_lengths.tolist(), rows.lengths.tolist(), strict=True
        ):
            assert int(state.counts[slot]) == past, "rows do not follow what is committed"
            for row in range(begun, begun + length):
                news = torch.tanh(features[row] @ self._read) + self._anchor[ids[row]]
                state.sums[slot] = 0.7 * state.sums[slot] + news
            state.counts[slot] += length
            begun += length
        assert begun == len(ids), "rows and ids differ"

    def draft(self, state: StubState, rows: Rows, anchors: Tensor, *, num_depths: int | None = None) -> Lattice:
        """See ``Drafter``."""
        assert state.counts[rows.slots].tolist() == rows.past_lengths.tolist(), "the anchor does not follow"
        depths = num_depths or self.num_depths
        logits = (state.sums[rows.slots] + self._anchor[anchors])[:, None] + self._depth[:depths]
        best = logits.log_softmax(dim=-1).topk(NUM_CANDIDATES, dim=-1)
        before = torch.cat([anchors[:, None, None].expand(-1, 1, NUM_CANDIDATES), best.indices[:, :-1]], dim=1)
        edges = self._pairs[before[..., :, None], best.indices[..., None, :]] + best.values[..., None, :]
        return Lattice(
            ids=best.indices,
            log_probs=best.values,
            chain=best.indices[:, :, 1],
            edges=edges if self._has_pairs else None,
            confidence=best.values[:, :, 0].exp() if self._has_pairs else None,
        )
