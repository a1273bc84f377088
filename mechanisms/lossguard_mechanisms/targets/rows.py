"""Which sequences a step's rows belong to: batched and ragged, one or many rows each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """N rows of B sequences, sequence after sequence, each in order.

    The two numbers are the host's, so that a step needs no answer from the device. For CUDA graphs fix them: rows of
    one token each, ``longest_context`` the graph's tier; the tensors may then change in place between replays.
    """

    slots: Tensor  # [B] int64, all different: where the state of each sequence is
    past_lengths: Tensor  # [B] int64, tokens that the state holds already
    lengths: Tensor  # [B] int64, rows of each sequence in this step, at least 1
    positions: Tensor  # [N] int64
    longest: int  # the largest of lengths
    longest_context: int  # at least past_length + length of every sequence
    places: Tensor | None  # [N] row in the padded [B * longest]; None where all lengths are equal

    @property
    def num_sequences(self) -> int:
        """B."""
        return self.slots.shape[0]

    @property
    def last_rows(self) -> Tensor:
        """[B] index of each sequence's last row: where the next token is read."""
        return self.lengths.cumsum(0) - 1

    @property
    def padded_positions(self) -> Tensor:
        """[B, longest] positions; those of padding go on counting."""
        steps = torch.arange(self.longest, device=self.past_lengths.device)
        return self.past_lengths[:, None] + steps

    @property
    def ragged_lengths(self) -> Tensor | None:
        """``lengths``, or None where there is no padding."""
        return None if self.places is None else self.lengths

    def pad(self, x: Tensor) -> Tensor:
        """[N, ...] to [B, longest, ...], padding zero."""
        shape = (self.num_sequences, self.longest)
        if self.places is None:
            return x.reshape(*shape, *x.shape[1:])
        padded = x.new_zeros((shape[0] * shape[1], *x.shape[1:]))
        return padded.index_copy(0, self.places, x).reshape(*shape, *x.shape[1:])

    def unpad(self, x: Tensor) -> Tensor:
        """[B, longest, ...] to [N, ...]."""
        flat = x.flatten(0, 1)
        return flat if self.places is None else flat.index_select(0, self.places)


def rows_of(
    slots: Sequence[int],
    past_lengths: Sequence[int],
    lengths: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    longest_context: int | None = None,
) -> Rows:
    """Rows of a step from the host's numbers, one entry per sequence.

    ``longest_context`` (None: just what is needed) bounds the keys that attention reads.
    """
    assert 0 < len(slots) == len(past_lengths) == len(lengths), "one slot, past and length per sequence"
    assert len(set(slots)) == len(slots), "two sequences share a slot"
    assert min(lengths) > 0 <= min(past_lengths), "a sequence in a step has rows, and no negative past"
    longest = max(lengths)
    needed = max(past + length for past, length in zip(past_lengths, lengths, strict=True))
    assert longest_context is None or longest_context >= needed, "a sequence is longer than the bound given"
    positions = [past + step for past, length in zip(past_lengths, lengths, strict=True) for step in range(length)]
    places = [row * longest + step for row, length in enumerate(lengths) for step in range(length)]

    def tensor(values: Sequence[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=device)

    return Rows(
        slots=tensor(slots),
        past_lengths=tensor(past_lengths),
        lengths=tensor(lengths),
        positions=tensor(positions),
        longest=longest,
        longest_context=needed if longest_context is None else longest_context,
        places=None if min(lengths) == longest else tensor(places),
    )
