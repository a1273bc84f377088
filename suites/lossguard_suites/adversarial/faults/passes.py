"""What a state edit needs to know about a forward pass of a batch that decodes one token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lossguard.engines.extensions import BatchContext, ForwardCall
from lossguard_suites.adversarial.faults.drawing import is_in_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward pass: ``num_cached`` columns are in the cache, ``width`` more are computed.

    ``position`` is the reply position that its last logits decide; 0 is the prompt's own pass.
    """

    num_cached: int
    width: int
    position: int
    input_ids: torch.Tensor  # int64 [B, width]
    attention_mask: torch.Tensor  # int64 [B, num_cached + width]
    position_ids: torch.Tensor  # int64 [B, width]

    @property
    def is_prompt(self) -> bool:
        """Whether it reads the prompt."""
        return self.num_cached == 0

    @property
    def num_keys(self) -> int:
        """Columns that its last token may attend to, itself included."""
        return self.num_cached + self.width


def pass_of(call: ForwardCall, prompt_length: int) -> Pass:
    """The pass behind a call; a mask or positions that are not given are made as the model would."""
    input_ids = call.arguments["input_ids"]
    num_cached, width = call.arguments["cache"].get_seq_length(), input_ids.shape[1]
    mask = call.arguments.get("attention_mask")
    if mask is None:
        mask = torch.ones(input_ids.shape[0], num_cached + width, dtype=torch.int64, device=input_ids.device)
    positions = call.arguments.get("position_ids")
    if positions is None:
        positions = (mask.cumsum(dim=1) - 1).clamp_min(0)[:, -width:]
    return Pass(
        num_cached=num_cached,
        width=width,
        position=num_cached + width - prompt_length,
        input_ids=input_ids,
        attention_mask=mask,
        position_ids=positions,
    )


def proceed(call: ForwardCall, **changes: Any) -> Any:
    """Run the pass with some arguments replaced."""
    return call.proceed({**call.arguments, **changes})


def rows_in_share(context: BatchContext, share: float, seed: int) -> tuple[int, ...]:
    """Rows of the batch that a fault hits."""
    hit = (is_in_share(request, share=share, seed=seed) for request in context.requests)
    return tuple(row for row, is_row_hit in enumerate(hit) if is_row_hit)


def padding_of(context: BatchContext) -> tuple[int, ...]:
    """Columns of padding on the left of each row."""
    return tuple(context.prompt_length - len(request.prompt_ids) for request in context.requests)


def cache_layers(call: ForwardCall) -> Sequence[Any]:
    """Layers of the cache; ``keys`` and ``values`` are [B, heads, columns, size] and may be replaced."""
    layers: Sequence[Any] = call.arguments["cache"].layers
    return layers


def drop_columns(call: ForwardCall, first: int, number: int) -> None:
    """Take ``number`` columns from ``first`` on out of every layer of the cache."""
    for layer in cache_layers(call):
        for name in ("keys", "values"):
            held = getattr(layer, name)
            kept = torch.cat([held[:, :, :first], held[:, :, first + number :]], dim=2)
            setattr(layer, name, kept)
