"""What a drafter remembers of committed tokens: keys and values of its layers, slot by slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard_mechanisms.targets.rows import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """Sizes of a drafter's state for one slot; ``pending_size`` is 0 where nothing waits for the next token."""

    num_layers: int
    num_key_value_heads: int
    head_dim: int
    pending_size: int = 0


class DrafterState:
    """Context of committed tokens, one slot per sequence; nothing drafted is ever in it.

    ``keys`` and ``values`` [layers, slots, capacity, key heads, head_dim]; ``pending`` [slots, pending_size] is what
    the last committed token left for the one that follows. What lies past a sequence's end in its slot is never seen.
    """

    def __init__(
        self,
        shape: StateShape,
        num_slots: int,
        capacity: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        sizes = (shape.num_layers, num_slots, capacity, shape.num_key_value_heads, shape.head_dim)
        self.keys = torch.zeros(sizes, dtype=dtype, device=device)
        self.values = torch.zeros(sizes, dtype=dtype, device=device)
        self.pending = torch.zeros((num_slots, shape.pending_size), dtype=dtype, device=device)

    def reset(self, slots: Sequence[int] | Tensor) -> None:
        """Make slots ready for new sequences."""
        index = torch.as_tensor(slots, dtype=torch.int64, device=self.keys.device)
        for tensor, dimension in self._by_slot():
            tensor.index_fill_(dimension, index, 0)

    def copy(self, sources: Sequence[int] | Tensor, targets: Sequence[int] | Tensor) -> None:
        """Overwrite ``targets`` with ``sources``, slot by slot."""
        read = torch.as_tensor(sources, dtype=torch.int64, device=self.keys.device)
        write = torch.as_tensor(targets, dtype=torch.int64, device=self.keys.device)
        for tensor, dimension in self._by_slot():
            tensor.index_copy_(dimension, write, tensor.index_select(dimension, read))

    def write(self, layer: int, rows: Rows, key: Tensor, value: Tensor) -> None:
        """Keep ``key`` and ``value`` [N, key heads, head_dim] of committed rows."""
        owners = owners_of(rows)
        self.keys[layer, owners, rows.positions] = key.to(self.keys.dtype)
        self.values[layer, owners, rows.positions] = value.to(self.values.dtype)

    @property
    def capacity(self) -> int:
        """Tokens that a slot holds."""
        return self.keys.shape[2]

    def read(self, layer: int, rows: Rows, *, longest: int | None = None) -> tuple[Tensor, Tensor]:
        """Copies of keys and values [B, S, key heads, head_dim] of the sequences of ``rows``.

        S is ``rows.longest_context``, or ``longest`` as far as there is room.
        """
        assert rows.longest_context <= self.capacity, "the context is longer than the slots"
        stretch = slice(0, rows.longest_context if longest is None else min(longest, self.capacity))
        return self.keys[layer, rows.slots, stretch], self.values[layer, rows.slots, stretch]

    def _by_slot(self) -> tuple[tuple[Tensor, int], ...]:
        return (self.keys, 1), (self.values, 1), (self.pending, 0)


def owners_of(rows: Rows) -> Tensor:
    """[N] the slot of each row, those that pad a sequence to ``longest`` included."""
    if rows.places is None:
        return rows.slots.repeat_interleave(rows.longest)
    return rows.slots.repeat_interleave(rows.lengths, output_size=rows.positions.shape[0])
