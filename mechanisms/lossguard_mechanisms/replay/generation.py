"""The target's own replies, batch by batch, one token of every sequence a step: enough to have something to record.

Tokens are chosen as the embedded engine chooses them: greedily, or from the request's key and the token's position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lossguard.records import Request
from lossguard_mechanisms.engine.counter_random import request_key
from lossguard_mechanisms.engine.sampler import RowSampling, choose
from lossguard_mechanisms.replay.batches import batches_by_length
from lossguard_mechanisms.targets.decoder import StepOutput, Target
from lossguard_mechanisms.targets.rows import rows_of
from lossguard_mechanisms.targets.stateful import RecurrentSlots, SlotKeyValues, StatefulMixing

_CHUNK = 256


@dataclass(slots=True)
class _Growing:
    """One request on its way; the last of ``tokens`` is chosen but not yet in the state."""

    request: Request
    slot: int
    tokens: list[int] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        sampling = self.request.sampling
        stopped = bool(self.tokens) and self.tokens[-1] in sampling.stop_ids and not sampling.ignore_eos
        return stopped or len(self.tokens) >= sampling.max_tokens

    @property
    def sampling(self) -> RowSampling:
        params = self.request.sampling
        return RowSampling(
            params=params,
            key=request_key(params.seed or 0, self.request.id, self.request.repeat_id),
            position=len(self.request.prompt_ids) + len(self.tokens),
        )


def generate(
    target: Target, requests: Sequence[Request], *, rows_at_once: int, progress: Callable[[int], None] = lambda _: None
) -> dict[str, list[int]]:
    """Token ids by request id; ``rows_at_once`` bounds the tokens whose states are in memory together."""
    lengths = [len(request.prompt_ids) + request.sampling.max_tokens for request in requests]
    found: dict[str, list[int]] = {}
    for batch in batches_by_length(lengths, rows_at_once):
        live = [_Growing(request=requests[index], slot=slot) for slot, index in enumerate(batch)]
        with torch.inference_mode():
            _Batch(target, live, capacity=max(lengths[index] for index in batch)).run(progress)
        found |= {one.request.id: one.tokens for one in live}
    return found


class _Batch:
    """States of some requests, from their prompts to the end of the longest reply."""

    def __init__(self, target: Target, live: Sequence[_Growing], *, capacity: int) -> None:
        weight = target.embedding.weight
        self._target, self._live, self._device = target, live, weight.device
        self._recurrent = RecurrentSlots(target.config, len(live), dtype=weight.dtype, device=weight.device)
        self._key_values = SlotKeyValues(target.config, len(live), capacity, dtype=weight.dtype, device=weight.device)

    def run(self, progress: Callable[[int], None]) -> None:
        """Fill in the tokens of all requests."""
        hidden = self._prefill()
        live = list(self._live)
        while live:
            chosen = choose(self._target.logits(hidden), [one.sampling for one in live]).tolist()
            for one, token in zip(live, chosen, strict=True):
                one.tokens.append(token)
            progress(len(live))
            live = [one for one in live if not one.is_done]
            if live:
                hidden = self._step({one.slot: self._last(one) for one in live})

    def _prefill(self) -> Tensor:
        """[B, hidden] after the last token of each prompt."""
        last: dict[int, Tensor] = {}
        longest = max(len(one.request.prompt_ids) for one in self._live)
        for begin in range(0, longest, _CHUNK):
            parts: dict[int, tuple[Sequence[int], int]] = {
                one.slot: (one.request.prompt_ids[begin : begin + _CHUNK], begin)
                for one in self._live
                if len(one.request.prompt_ids) > begin
            }
            last |= dict(zip(parts, self._step(parts), strict=True))
        return torch.stack([last[one.slot] for one in self._live])

    def _step(self, parts: dict[int, tuple[Sequence[int], int]]) -> Tensor:
        """Run new tokens of each slot after its earlier ones; [B, hidden] after the last of each."""
        ids = [token for tokens, _ in parts.values() for token in tokens]
        lengths = [len(tokens) for tokens, _ in parts.values()]
        rows = rows_of(list(parts), [past for _, past in parts.values()], lengths, device=self._device)
        mixing = StatefulMixing(rows, recurrent=self._recurrent, key_values=self._key_values)
        output: StepOutput = self._target(torch.tensor(ids, device=self._device), rows.positions, mixing)
        return output.hidden[rows.last_rows]

    @staticmethod
    def _last(one: _Growing) -> tuple[Sequence[int], int]:
        return one.tokens[-1:], len(one.request.prompt_ids) + len(one.tokens) - 1
