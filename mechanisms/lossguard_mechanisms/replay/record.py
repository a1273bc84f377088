"""Run a target and its drafter along given replies once, and keep what the drafter proposes at every position.

The target reads prompt and reply in one teacher-forced pass per batch, which gives the features. Then the drafter goes
through the reply as in serving, except that every position gets its turn as the anchor: draft, keep the lattice, commit
one token. Sequences of a batch go side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lossguard_mechanisms.drafters.base import Drafter, DrafterState
from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.replay.batches import batches_by_length
from lossguard_mechanisms.replay.columns import RecordingOptions, checked, kept_columns
from lossguard_mechanisms.replay.failures import foreign_replies, unusable_replies
from lossguard_mechanisms.replay.recording import Lattices, Provenance, Recording, Replies
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.rows import rows_of
from lossguard_mechanisms.targets.stateful import RecurrentSlots, SlotKeyValues, StatefulMixing

LEAST_AGREEMENT = 0.9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sequence:
    """One request in its slot. ``tokens`` are prompt and reply; equal only to itself."""

    slot: int
    row: int  # of its first reply token among all reply tokens
    tokens: Tensor  # [P + L] int64 on the device
    num_prompt: int

    @property
    def num_reply(self) -> int:
        return len(self.tokens) - self.num_prompt


def record(
    target: Target,
    drafter: Drafter,
    replies: Replies,
    provenance: Provenance,
    options: RecordingOptions | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Recording:
    """Lattices at all T positions of ``replies``; ``progress`` is told of every batch of positions.

    With greedy replies (temperature 0 in ``provenance``) the share of tokens that are the target's own first choice is
    noted. Raises UsageError LG1610 for replies that do not fit the target's context, LG1611 for replies of which under
    nine tenths are the target's, LG1614 for options that the drafter cannot serve, IntegrityError LG1604 for a drafter
    that does not keep to the contract.
    """
    options = checked(options or RecordingOptions(), drafter)
    longest = int((np.diff(replies.prompt_offsets) + replies.reply_lengths).max())
    if longest > target.config.max_position_embeddings:
        raise unusable_replies(f"one takes {longest} tokens of {target.config.max_position_embeddings}")
    recorder = _Recorder(target=target, drafter=drafter, options=options)
    lengths = (np.diff(replies.prompt_offsets) + replies.reply_lengths).tolist()
    with torch.inference_mode():
        for batch in batches_by_length(lengths, options.rows_at_once):
            recorder.record(replies, batch, progress)
    notes = provenance.notes
    if provenance.temperature == 0.0:
        share = recorder.num_agreeing / replies.num_tokens
        if share < LEAST_AGREEMENT:
            raise foreign_replies(share, LEAST_AGREEMENT)
        notes = (*notes, f"{100 * share:.2f} % of the reply tokens are the target's first choice in this pass")
    return Recording(
        provenance=replace(provenance, notes=notes), replies=replies, lattices=Lattices(**recorder.columns)
    )


class _Recorder:
    """Goes through batches and fills columns of all positions."""

    def __init__(self, *, target: Target, drafter: Drafter, options: RecordingOptions) -> None:
        self._target, self._drafter, self._options = target, drafter, options
        self._device, self._dtype = target.embedding.weight.device, target.embedding.weight.dtype
        self.columns: dict[str, Any] = {}  # numpy arrays by field of Lattices
        self.num_agreeing = 0

    def record(self, replies: Replies, batch: Sequence[int], progress: Callable[[int], None]) -> None:
        """All positions of some requests."""
        sequences = [self._sequence(replies, request, slot) for slot, request in enumerate(batch)]
        features = self._read(sequences)
        capacity = max(len(one.tokens) for one in sequences) + self._drafter.num_depths + 1
        state = self._drafter.new_state(len(sequences), capacity, dtype=self._dtype, device=self._device)
        self._extend_by_prompts(state, sequences, features)
        places: list[int] = []
        kept: list[Mapping[str, Tensor]] = []
        for step in range(max(one.num_reply for one in sequences)):
            live = [one for one in sequences if one.num_reply > step]
            kept.append(kept_columns(self._draft(state, live, step), self._options))
            places += [one.row + step for one in live]
            rest = [one for one in live if one.num_reply > step + 1]
            if rest:
                self._extend(state, {one: (one.num_prompt - 1 + step, 1) for one in rest}, features)
            progress(len(live))
        self._keep(places, kept, replies.num_tokens)

    def _sequence(self, replies: Replies, request: int, slot: int) -> _Sequence:
        tokens = np.concatenate([replies.prompt(request), replies.reply(request)])
        return _Sequence(
            slot=slot,
            row=int(replies.reply_offsets[request]),
            tokens=torch.as_tensor(tokens, device=self._device),
            num_prompt=len(replies.prompt(request)),
        )

    def _read(self, sequences: Sequence[_Sequence]) -> list[Tensor]:
        """[tokens - 1, L * H] features of each sequence, by slot; counts where the target agrees with the reply."""
        config, pieces = self._target.config, [list[Tensor]() for _ in sequences]
        longest = max(len(one.tokens) for one in sequences) - 1
        recurrent = RecurrentSlots(config, len(sequences), dtype=self._dtype, device=self._device)
        key_values = SlotKeyValues(config, len(sequences), longest, dtype=self._dtype, device=self._device)
        for begin in range(0, longest, self._options.chunk_length):
            parts = {
                one: (begin, min(self._options.chunk_length, len(one.tokens) - 1 - begin))
                for one in sequences
                if len(one.tokens) - 1 > begin
            }
            rows = rows_of([one.slot for one in parts], *_columns(parts.values()), device=self._device)
            mixing = StatefulMixing(rows, recurrent=recurrent, key_values=key_values)
            ids = torch.cat([one.tokens[first : first + count] for one, (first, count) in parts.items()])
            output = self._target(ids, rows.positions, mixing, capture=self._drafter.feature_layers)
            lengths = [count for _, count in parts.values()]
            for one, piece in zip(parts, torch.cat(output.features, dim=1).split(lengths), strict=True):
                pieces[one.slot].append(piece)
            self._count_agreeing(parts, output.hidden.split(lengths))
        return [torch.cat(parts_of_one) for parts_of_one in pieces]

    def _count_agreeing(self, parts: Mapping[_Sequence, tuple[int, int]], hidden: Sequence[Tensor]) -> None:
        for (one, (first, count)), rows in zip(parts.items(), hidden, strict=True):
            skipped = max(0, one.num_prompt - 1 - first)  # the last prompt token is the first whose choice is a reply's
            if skipped < count:
                chosen = self._target.logits(rows[skipped:]).argmax(dim=-1)
                self.num_agreeing += int((chosen == one.tokens[first + skipped + 1 : first + count + 1]).sum())

    def _extend_by_prompts(
        self, state: DrafterState, sequences: Sequence[_Sequence], features: Sequence[Tensor]
    ) -> None:
        """All prompt tokens but the last, which is the first anchor."""
        for begin in range(0, max(one.num_prompt for one in sequences) - 1, self._options.chunk_length):
            parts = {
                one: (begin, min(self._options.chunk_length, one.num_prompt - 1 - begin))
                for one in sequences
                if one.num_prompt - 1 > begin
            }
            self._extend(state, parts, features)

    def _extend(
        self, state: DrafterState, parts: Mapping[_Sequence, tuple[int, int]], features: Sequence[Tensor]
    ) -> None:
        rows = rows_of([one.slot for one in parts], *_columns(parts.values()), device=self._device)
        ids = torch.cat([one.tokens[first : first + count] for one, (first, count) in parts.items()])
        read = torch.cat([features[one.slot][first : first + count] for one, (first, count) in parts.items()])
        self._drafter.extend(state, rows, ids, read)

    def _draft(self, state: DrafterState, live: Sequence[_Sequence], step: int) -> Lattice:
        places = [one.num_prompt - 1 + step for one in live]
        rows = rows_of([one.slot for one in live], places, [1] * len(live), device=self._device)
        anchors = torch.stack([one.tokens[place] for one, place in zip(live, places, strict=True)])
        return self._drafter.draft(state, rows, anchors, num_depths=self._options.num_depths)

    def _keep(self, places: Sequence[int], kept: Sequence[Mapping[str, Tensor]], num_tokens: int) -> None:
        """Put the rows of a batch where they belong among all positions."""
        for name in kept[0]:
            rows = torch.cat([columns[name] for columns in kept]).cpu().numpy()
            if name not in self.columns:
                self.columns[name] = np.zeros((num_tokens, *rows.shape[1:]), dtype=rows.dtype)
            self.columns[name][np.array(places)] = rows


def _columns(parts: Any) -> tuple[list[int], list[int]]:
    """Past lengths and lengths, from pairs of them."""
    pairs = list(parts)
    return [first for first, _ in pairs], [count for _, count in pairs]
