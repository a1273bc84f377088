"""A fault of expert routing, on a dense model: some tokens pass through the last layer's feed-forward part."""

from __future__ import annotations

from typing import Any

import torch

from lossguard.engines.extensions import BatchContext, ForwardCall
from lossguard_suites.adversarial.faults.drawing import chance
from lossguard_suites.adversarial.faults.passes import pass_of, proceed


class WrongExpert:
    """At steps that are hit, one layer's feed-forward part is the last layer's."""

    def __init__(self, context: BatchContext, *, probability: float, layer: int, seed: int) -> None:
        self._context = context
        self._probability = probability
        self._layer = layer
        self._seed = seed

    def __call__(self, call: ForwardCall) -> Any:
        current = pass_of(call, self._context.prompt_length)
        rows = [] if current.is_prompt else self._hit(current.position)
        if not rows:
            return proceed(call)
        layers = call.model.get_decoder().layers
        last = layers[-1].mlp

        def routed(_module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            changed = output.clone()
            changed[rows] = last(inputs[0][rows])
            return changed

        handle = layers[self._layer].mlp.register_forward_hook(routed)
        try:
            return proceed(call)
        finally:
            handle.remove()

    def _hit(self, position: int) -> list[int]:
        return [
            row
            for row, request in enumerate(self._context.requests)
            if chance("expert", self._seed, request.id, position) < self._probability
        ]


def wrong_expert(context: BatchContext, *, probability: float = 0.1, layer: int = 0, seed: int = 0) -> WrongExpert:
    """F30. A token goes to the last expert, with ``probability``: ``layer`` borrows the last layer's weights."""
    return WrongExpert(context, probability=probability, layer=layer, seed=seed)
