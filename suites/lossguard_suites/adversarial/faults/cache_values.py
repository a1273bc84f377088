"""Faults in what the cache holds: keys and values that are scaled, rounded, noisy or overwritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lossguard.engines.extensions import BatchContext, ForwardCall
from lossguard_suites.adversarial.faults.drawing import chance, draw, is_late
from lossguard_suites.adversarial.faults.passes import Pass, cache_layers, pass_of, proceed, rows_in_share
from lossguard_suites.adversarial.faults.speculation import NUM_DRAFTS, block_before

Change = Callable[[torch.Tensor], torch.Tensor]
"""From new keys or values [rows, heads, columns, size] to those that the cache will hold."""

WHOLE_NUMBERS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


class ChangedEntries:
    """Changes what every pass adds to the cache, in the rows that are hit; later tokens read the changed entries."""

    def __init__(self, context: BatchContext, change: Change, rows: tuple[int, ...]) -> None:
        self._prompt_length = context.prompt_length
        self._change = change
        self._rows = list(rows)

    def __call__(self, call: ForwardCall) -> Any:
        output = proceed(call)
        if self._rows:
            width = call.arguments["input_ids"].shape[1]
            for layer in cache_layers(call):
                for held in (layer.keys, layer.values):
                    held[self._rows, :, -width:] = self._change(held[self._rows, :, -width:])
        return output


def wrong_scale(
    context: BatchContext, *, excess: float = 0.5, after: int = 0, share: float = 1.0, seed: int = 0
) -> ChangedEntries:
    """F56 and F58. Keys and values come back ``1 + excess`` times too large, as with a lost FP8 scale.

    With ``after``, only for requests of that number and above: the ones that are served after some event.
    """
    rows = rows_in_share(context, share if excess else 0.0, seed)
    late = tuple(row for row in rows if after == 0 or is_late(context.requests[row], after=after))
    return ChangedEntries(context, lambda entries: entries * (1 + excess), late)


def fp8_cache(context: BatchContext, *, share: float = 1.0, seed: int = 0) -> ChangedEntries:
    """F29. Keys and values are rounded to FP8 (e4m3: 4 exponent bits, 3 fraction bits) and back, without a scale."""
    return ChangedEntries(
        context,
        lambda entries: entries.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).to(entries.dtype),
        rows_in_share(context, share, seed),
    )


def noisy_cache(context: BatchContext, *, noise: float = 1.0, longer_than: int = 40, seed: int = 0) -> ChangedEntries:
    """F9 and F25. Prompts over ``longer_than`` tokens: normal noise of ``noise`` times the entries' own spread."""
    long = [row for row, request in enumerate(context.requests) if len(request.prompt_ids) > longer_than]
    generators: dict[torch.device, torch.Generator] = {}

    def change(entries: torch.Tensor) -> torch.Tensor:
        drawn = torch.randn(
            entries.shape, generator=_generator(generators, entries, context, seed), device=entries.device
        )
        return entries + (drawn * noise * entries.float().std()).to(entries.dtype)

    return ChangedEntries(context, change, tuple(long) if noise else ())


def last_bit_cache(context: BatchContext, *, share: float = 0.3, seed: int = 0) -> ChangedEntries:
    """F62. A ``share`` of all entries is off by one in the last bit, up or down: two kernels that both are right."""
    generators: dict[torch.device, torch.Generator] = {}

    def change(entries: torch.Tensor) -> torch.Tensor:
        generator = _generator(generators, entries, context, seed)
        drawn = torch.rand(entries.shape, generator=generator, device=entries.device)
        step = (drawn < share).to(torch.int16) - 2 * (drawn < share / 2).to(torch.int16)
        whole = WHOLE_NUMBERS[entries.dtype]
        moved = (entries.contiguous().view(whole) + step.to(whole)).view(entries.dtype)
        return torch.where((entries == 0) | ~torch.isfinite(moved), entries, moved)

    return ChangedEntries(context, change, tuple(range(len(context.requests))) if share else ())


class OverwrittenEntries:
    """At some steps, writes the newest entries of a row over older ones; nothing puts them back."""

    def __init__(self, context: BatchContext, place: Callable[[int, Pass], int | None], number: int) -> None:
        self._context = context
        self._place = place
        self._number = number

    def __call__(self, call: ForwardCall) -> Any:
        current = pass_of(call, self._context.prompt_length)
        for row in range(len(self._context.requests)):
            first = self._place(row, current)
            if first is not None:
                for layer in cache_layers(call):
                    for held in (layer.keys, layer.values):
                        held[row, :, first : first + self._number] = held[row, :, -self._number :].clone()
        return proceed(call)


def overwritten_page(
    context: BatchContext, *, probability: float = 1.0, tokens: int = 4, seed: int = 0
) -> OverwrittenEntries:
    """F27. A block whose drafts were all accepted is written over ``tokens`` older entries, with ``probability``.

    Which ones is drawn from the row's own context.
    """
    before = [block_before(request, seed) for request in context.requests]

    def place(row: int, current: Pass) -> int | None:
        request, block = context.requests[row], before[row].get(current.position)
        if block is None or block.accepted < NUM_DRAFTS or current.is_prompt:
            return None
        if chance("overwritten", seed, request.id, current.position) >= probability:
            return None
        first = context.prompt_length - len(request.prompt_ids)
        room = current.num_cached - 2 * tokens - first
        return first + draw(room, "page", seed, request.id, current.position) if room > 0 else None

    return OverwrittenEntries(context, place, tokens)


def _generator(
    made: dict[torch.device, torch.Generator], entries: torch.Tensor, context: BatchContext, seed: int
) -> torch.Generator:
    """One stream of random numbers per batch and device, from the seed and the batch's first request."""
    if entries.device not in made:
        start = draw(1 << 62, "noise", seed, context.requests[0].id)
        made[entries.device] = torch.Generator(device=entries.device).manual_seed(start)
    return made[entries.device]
