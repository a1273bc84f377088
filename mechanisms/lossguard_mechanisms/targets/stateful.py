"""Mixing from and into states that the caller owns: prefill of chunks and decode, batched and ragged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from lossguard_mechanisms.targets.attention import grouped_attention
from lossguard_mechanisms.targets.config import TargetConfig
from lossguard_mechanisms.targets.gated_delta import convolve_chunk, delta_chunks, delta_step
from lossguard_mechanisms.targets.mixing import DeltaInputs
from lossguard_mechanisms.targets.rows import Rows

MOST_GAPS = 2
"""Slots passed over for each that is stepped: each costs two passes over a state less than a copy there and back."""


class KeyValues(Protocol):
    """Keys and values of all attention layers; pages or slots are the caller's business."""

    def attend(self, layer: int, rows: Rows, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Keep the rows' ``key`` and ``value``, then attend from every row to its sequence up to itself.

        Shapes as in ``Mixing.attend``; ``layer`` counts all layers.
        """


class RecurrentSlots:
    """Convolution and recurrent states of all delta layers, one slot per sequence.

    ``conv`` [delta layers, slots, channels, width - 1] in the model's dtype, oldest column first; ``recurrent``
    [delta layers, slots, value heads, key_dim, value_dim] in float32. Zeros are the state before the first token.
    """

    def __init__(
        self, config: TargetConfig, num_slots: int, *, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self._place = {layer: place for place, layer in enumerate(config.delta_layers)}
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        conv_shape, state_shape = (0, 0), (0, 0, 0)
        if config.delta is not None:
            conv_shape = (config.delta.conv_channels, config.delta.conv_width - 1)
            state_shape = (config.delta.num_value_heads, config.delta.key_dim, config.delta.value_dim)
        leading = (len(self._place), num_slots)
        self.conv = torch.zeros((*leading, *conv_shape), dtype=dtype, device=device)
        self.recurrent = torch.zeros((*leading, *state_shape), dtype=wide, device=device)

    def place_of(self, layer: int) -> int:
        """Where a layer's states lie in the first dimension."""
        return self._place[layer]

    def reset(self, slots: Sequence[int] | Tensor) -> None:
        """Make slots ready for new sequences."""
        index = torch.as_tensor(slots, dtype=torch.int64, device=self.conv.device)
        self.conv.index_fill_(1, index, 0)
        self.recurrent.index_fill_(1, index, 0)

    def copy(self, sources: Sequence[int] | Tensor, targets: Sequence[int] | Tensor) -> None:
        """Overwrite ``targets`` with ``sources``, slot by slot: a snapshot, or the way back to one."""
        read = torch.as_tensor(sources, dtype=torch.int64, device=self.conv.device)
        write = torch.as_tensor(targets, dtype=torch.int64, device=self.conv.device)
        self.conv.index_copy_(1, write, self.conv.index_select(1, read))
        self.recurrent.index_copy_(1, write, self.recurrent.index_select(1, read))

    def convolve(self, layer: int, rows: Rows, channels: Tensor, weight: Tensor) -> Tensor:
        """As ``Mixing.convolve``, from and into the slots of ``rows``."""
        pool = self.conv[self._place[layer]]
        past = read_slots(pool, rows.slots)
        mixed, after = convolve_chunk(rows.pad(channels), weight, past, rows.ragged_lengths)
        pool.index_copy_(0, rows.slots, after.to(pool.dtype))
        return rows.unpad(mixed)

    def recur(self, layer: int, rows: Rows, inputs: DeltaInputs) -> Tensor:
        """As ``Mixing.recur``, from and into the slots of ``rows``: by steps for single tokens, else by chunks."""
        pool = self.recurrent[self._place[layer]]
        if rows.longest == 1:
            return _step_in_place(pool, rows.slots, inputs)
        outputs, after = delta_chunks(_padded(rows, inputs), read_slots(pool, rows.slots))
        pool.index_copy_(0, rows.slots, after)
        return rows.unpad(outputs)


class SlotKeyValues:
    """Keys and values in one stretch per slot: for tests, evaluation and small engines.

    ``keys`` and ``values`` [attention layers, slots, capacity, key heads, head_dim].
    """

    def __init__(
        self,
        config: TargetConfig,
        num_slots: int,
        capacity: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self._place = {layer: place for place, layer in enumerate(config.attention_layers)}
        shape = (len(self._place), num_slots, capacity, config.num_key_value_heads, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    def attend(self, layer: int, rows: Rows, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See ``KeyValues``. What lies past a sequence's end in its slot is never visible."""
        keys, values = self.keys[self._place[layer]], self.values[self._place[layer]]
        assert rows.longest_context <= keys.shape[1], "the context is longer than the slots"
        owners = rows.slots.repeat_interleave(rows.lengths, output_size=rows.positions.shape[0])
        keys[owners, rows.positions] = key
        values[owners, rows.positions] = value
        stretch = slice(0, rows.longest_context)
        places = torch.arange(rows.longest_context, device=keys.device)
        visible = places <= rows.padded_positions[..., None]
        mixed = grouped_attention(rows.pad(query), keys[rows.slots, stretch], values[rows.slots, stretch], visible)
        return rows.unpad(mixed)


class StatefulMixing:
    """A ``Mixing`` of one step over the states that the caller gives; they hold the step's tokens afterwards."""

    def __init__(self, rows: Rows, *, recurrent: RecurrentSlots, key_values: KeyValues) -> None:
        self._rows = rows
        self._recurrent = recurrent
        self._key_values = key_values

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See ``Mixing``."""
        return self._key_values.attend(layer, self._rows, query, key, value)

    def convolve(self, layer: int, channels: Tensor, weight: Tensor) -> Tensor:
        """See ``Mixing``."""
        return self._recurrent.convolve(layer, self._rows, channels, weight)

    def recur(self, layer: int, inputs: DeltaInputs) -> Tensor:
        """See ``Mixing``."""
        return self._recurrent.recur(layer, self._rows, inputs)


def stretch_of(slots: Tensor) -> slice | None:
    """The stretch that ascending slots without a gap are; None for others, and on devices, which are not asked."""
    if slots.device.type != "cpu":
        return None
    first = int(slots[0])
    stretch = slice(first, first + slots.shape[0])
    return stretch if torch.equal(slots, torch.arange(stretch.start, stretch.stop)) else None


def read_slots(pool: Tensor, slots: Tensor) -> Tensor:
    """What ``pool`` holds in ``slots``, to be read only: in place where they are a stretch, else a copy."""
    stretch = stretch_of(slots)
    return pool.index_select(0, slots) if stretch is None else pool[stretch]


def _step_in_place(pool: Tensor, slots: Tensor, inputs: DeltaInputs) -> Tensor:
    """One token of each of the slots. States are large and inputs small: on a CPU no state is copied for a few gaps."""
    stretch = stretch_of(slots)
    if stretch is not None:
        return delta_step(inputs, pool[stretch], out=pool[stretch])[0]
    if slots.device.type == "cpu":
        first, last = int(slots.min()), int(slots.max())
        if last - first < MOST_GAPS * slots.shape[0]:
            return _step_over_gaps(pool[first : last + 1], slots - first, inputs)
    state = pool.index_select(0, slots)
    mixed, after = delta_step(inputs, state, out=state)
    pool.index_copy_(0, slots, after)
    return mixed


def _step_over_gaps(states: Tensor, places: Tensor, inputs: DeltaInputs) -> Tensor:
    """One token at each of ``places`` of ``states``; the others get an all-zero token, which the rule passes over."""

    def spread(x: Tensor) -> Tensor:
        return x.new_zeros((states.shape[0], *x.shape[1:])).index_copy_(0, places, x)

    whole = DeltaInputs(
        query=spread(inputs.query),
        key=spread(inputs.key),
        value=spread(inputs.value),
        log_decay=spread(inputs.log_decay),
        beta=spread(inputs.beta),
    )
    mixed, _ = delta_step(whole, states, out=states)
    return mixed.index_select(0, places)


def _padded(rows: Rows, inputs: DeltaInputs) -> DeltaInputs:
    """Padding is all zero, which the rule passes over."""
    return DeltaInputs(
        query=rows.pad(inputs.query),
        key=rows.pad(inputs.key),
        value=rows.pad(inputs.value),
        log_decay=rows.pad(inputs.log_decay),
        beta=rows.pad(inputs.beta),
    )
