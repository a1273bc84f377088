"""What decode steps read of the pages, kept from step to step.

Steps of the same sequences read the same pages, and all that is new in them are the rows that those steps wrote. On a
CPU gathering pages takes as long as attention's own products, so what was gathered is kept, and each step writes its
rows there too. Two things make a copy stale, and must be told by ``forget``: a page that changes hands, and rows that
are moved within pages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

MOST_BYTES = 2**30  # of all copies; the pages themselves hold the same once more


@dataclass(slots=True)
class KeptReads:
    """One step's reads, a part for each layer's keys and for its values."""

    _blocks: Tensor | None = None
    _memory: dict[int, Tensor] = field(default_factory=dict)  # taken once, since new memory is slow to write
    _filled: set[int] = field(default_factory=set)

    def serves(self, blocks: Tensor, num_bytes: int) -> bool:
        """Whether a step that reads ``blocks``, ``num_bytes`` in all, goes by copies: from the second such step on."""
        if num_bytes <= MOST_BYTES and self._blocks is not None and torch.equal(blocks, self._blocks):
            return True
        self.forget()
        self._blocks = blocks
        return False

    def forget(self) -> None:
        """The pages are not what they were."""
        self._blocks = None
        self._filled.clear()

    def read(self, part: int, pool: Tensor, blocks: Tensor) -> tuple[Tensor, bool]:
        """(what ``blocks`` of ``pool`` [blocks, width] hold, whether it was kept), without later writes if it was."""
        size = (blocks.shape[0], pool.shape[1])
        kept = self._space(part, pool, size)
        if part in self._filled:
            return kept, True
        self._filled.add(part)
        return torch.index_select(pool, 0, blocks, out=kept), False

    def _space(self, part: int, like: Tensor, size: tuple[int, int]) -> Tensor:
        needed = math.prod(size)
        if part not in self._memory or self._memory[part].shape[0] < needed:
            self._memory[part] = like.new_empty(needed)
        return self._memory[part][:needed].view(size)
