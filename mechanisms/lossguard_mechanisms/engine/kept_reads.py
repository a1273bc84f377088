"""What decode steps read of the pages, kept from step to step.

Steps of the same sequences read the same pages, and all that is new in them are the rows that those steps wrote. On a
CPU gathering pages takes longer than attention's own products, so what was gathered is kept, and each step writes its
rows there too. Two things make a copy stale, and must be told by ``forget``: a page that changes hands, and rows that
are moved within pages.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

MOST_BYTES = 2**30  # of all copies; the pages themselves hold the same once more


@dataclass(slots=True)
class KeptReads:
    """Of one set of sequences, a part for each layer's keys and one for its values."""

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

    def read(self, part: int, pages: Tensor, blocks: Tensor) -> tuple[Tensor, bool]:
        """(what ``blocks`` of ``pages`` [pages, width] hold, whether by an earlier step and so without this one's)."""
        size = (blocks.shape[0], pages.shape[1])
        if part not in self._memory or self._memory[part].shape[0] < blocks.shape[0]:
            self._memory[part] = pages.new_empty(size)
        kept = self._memory[part][: size[0]]
        if part in self._filled:
            return kept, True
        self._filled.add(part)
        return torch.index_select(pages, 0, blocks, out=kept), False
