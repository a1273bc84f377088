"""Faults in which tokens that are not in the request stand before its prompt."""

from __future__ import annotations

from typing import Any

import torch

from lossguard.engines.extensions import BatchContext, ForwardCall
from lossguard_suites.adversarial.faults.passes import Pass, pass_of, proceed, rows_in_share


class StalePrefix:
    """Reads other tokens before the prompt; the rows that are hit attend to them until the end."""

    def __init__(self, context: BatchContext, prefixes: list[tuple[int, ...]]) -> None:
        self._num_columns = max((len(prefix) for prefix in prefixes), default=0)
        self._prompt_length = context.prompt_length + self._num_columns
        padding = [self._num_columns - len(prefix) for prefix in prefixes]
        self._ids = [[0] * empty + list(prefix) for empty, prefix in zip(padding, prefixes, strict=True)]
        self._mask = [[0] * empty + [1] * len(prefix) for empty, prefix in zip(padding, prefixes, strict=True)]
        self._lengths = [[len(prefix)] for prefix in prefixes]

    def __call__(self, call: ForwardCall) -> Any:
        if self._num_columns == 0:
            return proceed(call)
        if call.arguments["cache"].get_seq_length() == 0:
            self._read(call)
        current = pass_of(call, self._prompt_length)
        lengths = torch.tensor(self._lengths, device=current.input_ids.device)
        return proceed(
            call,
            attention_mask=self._with_prefix(current, call.arguments["attention_mask"]),
            position_ids=current.position_ids + lengths,
        )

    def _with_prefix(self, current: Pass, mask: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.tensor(self._mask, dtype=mask.dtype, device=mask.device), mask], dim=1)

    def _read(self, call: ForwardCall) -> None:
        ids = call.arguments["input_ids"]
        mask = torch.tensor(self._mask, dtype=torch.int64, device=ids.device)
        proceed(
            call,
            input_ids=torch.tensor(self._ids, dtype=ids.dtype, device=ids.device),
            attention_mask=mask,
            position_ids=(mask.cumsum(dim=1) - 1).clamp_min(0),
        )


def kept_tail(context: BatchContext, *, tokens: int = 8, share: float = 1.0, seed: int = 0) -> StalePrefix:
    """F37. The session still holds the last ``tokens`` tokens of another turn, here of the next row's prompt."""
    rows = rows_in_share(context, share, seed)
    requests = context.requests
    tails = [requests[(row + 1) % len(requests)].prompt_ids for row in range(len(requests))]
    return StalePrefix(context, [tail[len(tail) - tokens :] if row in rows else () for row, tail in enumerate(tails)])


def other_prompt(context: BatchContext, *, tokens: int = 16, share: float = 1.0, seed: int = 0) -> StalePrefix:
    """F68. The server puts its own words before the prompt: ``tokens`` tokens of this very prompt, said twice.

    The doubled opening keeps the prompt well-formed: nothing in the reply looks broken.
    """
    rows = rows_in_share(context, share, seed)
    return StalePrefix(
        context,
        [request.prompt_ids[:tokens] if row in rows else () for row, request in enumerate(context.requests)],
    )
