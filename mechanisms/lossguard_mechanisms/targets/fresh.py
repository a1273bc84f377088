"""Mixing over whole sequences of one length without any state: for training, where gradients flow through it."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from lossguard_mechanisms.targets.gated_delta import convolve_chunk, delta_chunks
from lossguard_mechanisms.targets.mixing import DeltaInputs


class FreshMixing:
    """A ``Mixing`` of ``num_sequences`` sequences of equal length, row after row, all from their first token."""

    def __init__(self, num_sequences: int, *, chunk_length: int | None = None) -> None:
        self._num_sequences = num_sequences
        self._chunk_length = chunk_length

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See ``Mixing``."""
        groups = query.shape[1] // key.shape[1]
        heads_first = [self._split(x).transpose(1, 2) for x in (query, key, value)]
        key, value = (x.repeat_interleave(groups, 1) for x in heads_first[1:])
        mixed = functional.scaled_dot_product_attention(heads_first[0], key, value, is_causal=True)
        return mixed.transpose(1, 2).flatten(0, 1)

    def convolve(self, layer: int, channels: Tensor, weight: Tensor) -> Tensor:
        """See ``Mixing``."""
        past = channels.new_zeros((self._num_sequences, weight.shape[0], weight.shape[1] - 1))
        mixed, _ = convolve_chunk(self._split(channels), weight, past, None)
        return mixed.flatten(0, 1)

    def recur(self, layer: int, inputs: DeltaInputs) -> Tensor:
        """See ``Mixing``."""
        split = DeltaInputs(
            query=self._split(inputs.query),
            key=self._split(inputs.key),
            value=self._split(inputs.value),
            log_decay=self._split(inputs.log_decay),
            beta=self._split(inputs.beta),
        )
        outputs, _ = delta_chunks(split, None, chunk_length=self._chunk_length)
        return outputs.flatten(0, 1)

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(self._num_sequences, -1, *x.shape[1:])
