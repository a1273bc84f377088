"""Logits processors that a system's options name: functions between the target's logits and the choice of a token.

They are those of the transformers engine. Sequences of this engine join and leave between steps, so that each request
has processors of its own, made for a batch of one: what they remember belongs to one reply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lossguard.engines.extensions import BatchContext, Extension

Processing = Callable[[Sequence[int], Tensor], Tensor]
"""From the ids of prompt and reply so far and scores [1, V] in float32 to the scores [1, V] to choose by."""


def processing_of(extensions: Sequence[Extension], context: BatchContext) -> Processing | None:
    """All processors in their order, made anew for the request of ``context``; None if there are none.

    Raises what the factories raise.
    """
    if not extensions:
        return None
    processors = [extension.load()(context, **extension.arguments) for extension in extensions]

    def process(tokens: Sequence[int], scores: Tensor) -> Tensor:
        ids = torch.tensor([tokens], device=scores.device)
        for processor in processors:
            scores = processor(ids, scores)
        return scores

    return process
