"""Several mixings in one step: single tokens of some sequences beside a long chunk of another, without padding.

Matrix products run over all rows together; what looks across rows runs part by part.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lossguard_mechanisms.targets.mixing import DeltaInputs, Mixing


class JoinedMixing:
    """A ``Mixing`` of parts that lie row after row; ``parts`` has each part's number of rows and its own mixing.

    No sequence may be in two parts.
    """

    def __init__(self, parts: Sequence[tuple[int, Mixing]]) -> None:
        assert parts, "a step has at least one part"
        self._lengths = [num_rows for num_rows, _ in parts]
        self._mixings = [mixing for _, mixing in parts]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See ``Mixing``."""
        inputs = zip(self._mixings, *(x.split(self._lengths) for x in (query, key, value)), strict=True)
        return torch.cat([mixing.attend(layer, *part) for mixing, *part in inputs])

    def convolve(self, layer: int, channels: Tensor, weight: Tensor) -> Tensor:
        """See ``Mixing``."""
        inputs = zip(self._mixings, channels.split(self._lengths), strict=True)
        return torch.cat([mixing.convolve(layer, part, weight) for mixing, part in inputs])

    def recur(self, layer: int, inputs: DeltaInputs) -> Tensor:
        """See ``Mixing``."""
        tensors = (inputs.query, inputs.key, inputs.value, inputs.log_decay, inputs.beta)
        parts = zip(self._mixings, *(x.split(self._lengths) for x in tensors), strict=True)
        return torch.cat(
            [
                mixing.recur(layer, DeltaInputs(query=q, key=k, value=v, log_decay=g, beta=b))
                for mixing, q, k, v, g, b in parts
            ]
        )
