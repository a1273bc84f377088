"""A control: entries of the cache are thrown away and computed again, as after a preemption."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from lossguard.engines.extensions import BatchContext, ForwardCall
from lossguard.records import Request, ServedOutput
from lossguard_suites.adversarial.faults.passes import drop_columns, pass_of, proceed


class RecomputedEntries:
    """Every ``every`` steps, drops the last ``tokens`` entries and reads those tokens again with the current one."""

    def __init__(self, context: BatchContext, *, tokens: int, every: int) -> None:
        self._prompt_length = context.prompt_length
        self._tokens = tokens
        self._every = every
        self._ids: list[torch.Tensor] = []  # int64 [B, width] of every pass
        self._position_ids: list[torch.Tensor] = []

    def __call__(self, call: ForwardCall) -> Any:
        current = pass_of(call, self._prompt_length)
        self._ids.append(current.input_ids)
        self._position_ids.append(current.position_ids)
        if current.is_prompt or self._every == 0 or current.position % self._every:
            return proceed(call)
        number = min(self._tokens, current.num_cached)
        drop_columns(call, current.num_cached - number, number)
        return proceed(
            call,
            input_ids=torch.cat(self._ids, dim=1)[:, -number - 1 :],
            position_ids=torch.cat(self._position_ids, dim=1)[:, -number - 1 :],
        )


def recomputed_entries(context: BatchContext, *, tokens: int = 8, every: int = 16) -> RecomputedEntries:
    """F45. What was swallowed is generated again: slower, in other widths, and the same."""
    return RecomputedEntries(context, tokens=tokens, every=every)


def preemption_telemetry(output: ServedOutput, request: Request, *, every: int = 16) -> ServedOutput:
    """Reports a preemption at each recomputation."""
    flags = tuple(float(at > 0 and at % every == 0) for at in range(len(output.ids)))
    return replace(output, telemetry={**output.telemetry, "preempted": flags})
