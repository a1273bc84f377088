"""A replayed target: random weights of a real shape give each step its time, a recording gives it its tokens.

The target runs every pass in full and its choice is computed, then replaced by the recorded token; the drafter runs
too, and its lattice is replaced by the recorded one. Step times and acceptance are those of real systems, therefore,
while the replies say nothing about any model: a system that replays must never be judged for losslessness (LG1503).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard.errors import EngineError
from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.engine.decoding import DecodeInputs, DecodeStage, PreparedDecode, Speculation
from lossguard_mechanisms.engine.memory import Memory
from lossguard_mechanisms.engine.sequence import Sequence
from lossguard_mechanisms.targets.config import TargetConfig
from lossguard_mechanisms.trees.tree import Path, Tree

LABEL = "replayed: random weights, recorded tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLattices:
    """Candidates at every position of R replies of at most L tokens, for policies that choose among them."""

    ids: Tensor  # [R, L, D, K] int64
    log_probs: Tensor  # [R, L, D, K]
    edges: Tensor | None  # [R, L, D, K, K], see ``drafters.lattice.Lattice``; a recording's are normalised


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTable:
    """R recorded replies, padded to one length, on the device that replays them."""

    request_ids: tuple[str, ...]
    lengths: tuple[int, ...]  # tokens of each reply; what lies past them is no reply
    tokens: Tensor  # [R, L] int64
    chains: Tensor  # [R, L, D] int64: what the drafter drafts for reply tokens t, t + 1, ...
    lattices: RecordedLattices | None = None  # None: the chain is all that can be verified

    @property
    def num_drafts(self) -> int:
        """D."""
        return self.chains.shape[2]

    def lattice(self, rows: Tensor, places: Tensor) -> Lattice:
        """What was recorded for B sequences: ``rows`` and ``places`` [B]. Without lattices, the chain alone."""
        chains, kept = self.chains[rows, places], self.lattices
        if kept is None:
            alone = chains[..., None]
            zeros = torch.zeros_like(alone, dtype=torch.float32)
            return Lattice(ids=alone, log_probs=zeros, chain=chains, edges=None, confidence=None)
        return Lattice(
            ids=kept.ids[rows, places],
            log_probs=kept.log_probs[rows, places].float(),
            chain=chains,
            edges=None if kept.edges is None else kept.edges[rows, places].float(),
            confidence=None,
        )


def replay_table(
    replies: Mapping[str, Several[int]], chains: Mapping[str, Several[Several[int]]], *, device: torch.device
) -> ReplayTable:
    """A table from each request's reply and its chain at every position of the reply."""
    names = tuple(replies)
    longest = max(len(reply) for reply in replies.values())
    depth = len(chains[names[0]][0])
    tokens = torch.zeros(len(names), longest, dtype=torch.int64)
    drafted = torch.zeros(len(names), longest, depth, dtype=torch.int64)
    for row, name in enumerate(names):
        length = len(replies[name])
        tokens[row, :length] = torch.as_tensor(replies[name])
        drafted[row, :length] = torch.as_tensor(chains[name])
    lengths = tuple(len(reply) for reply in replies.values())
    return ReplayTable(request_ids=names, lengths=lengths, tokens=tokens.to(device), chains=drafted.to(device))


class ReplayedStage(DecodeStage):
    """A ``DecodeStage`` whose drafts and choices come from a table. All of it stays on the device."""

    label = LABEL

    def __init__(
        self, config: TargetConfig, memory: Memory, speculation: Speculation | None, table: ReplayTable
    ) -> None:
        super().__init__(config, memory, speculation)
        self._table = table
        self._row_of = {name: row for row, name in enumerate(table.request_ids)}
        slots = memory.sizes.num_slots + 1
        self._rows = torch.zeros(slots, dtype=torch.int64, device=memory.sizes.device)
        self._prompts = torch.zeros(slots, dtype=torch.int64, device=memory.sizes.device)

    def begin(self, sequence: Sequence) -> None:
        """See ``DecodeStage``."""
        name = sequence.job.request.id
        if name not in self._row_of:
            raise _not_recorded(name)
        self._rows[sequence.slot] = self._row_of[name]
        self._prompts[sequence.slot] = sequence.num_prompt

    def first_tokens(self, sequences: Several[Sequence], chosen: Tensor) -> Tensor:
        """See ``DecodeStage``."""
        rows = torch.tensor([self._row_of[sequence.job.request.id] for sequence in sequences], device=chosen.device)
        return self._table.tokens[rows, 0]

    def settle(self, prepared: PreparedDecode, chosen: Tensor, features: tuple[Tensor, ...]) -> Path:
        """See ``DecodeStage``; ``chosen`` has been computed and is replaced."""
        inputs = prepared.inputs
        depths = prepared.tree.depths
        places = (self._next_place(inputs)[:, None] + depths).clamp(max=self._table.tokens.shape[1] - 1)
        recorded = self._table.tokens[self._rows[inputs.slots][:, None], places]
        return super().settle(prepared, recorded, features)

    def _tree(self, inputs: DecodeInputs, lattice: Lattice) -> Tree:
        places = self._next_place(inputs).clamp(max=self._table.tokens.shape[1] - 1)
        return super()._tree(inputs, self._table.lattice(self._rows[inputs.slots], places))

    def _next_place(self, inputs: DecodeInputs) -> Tensor:
        """[B] which token of the reply comes after the anchor."""
        return (inputs.past_lengths - self._prompts[inputs.slots] + 1).clamp(min=0)


def _not_recorded(name: str) -> EngineError:
    return EngineError(
        f"request {name!r} is not in the recording that is replayed",
        why="a replayed target has no tokens of its own",
        fix="serve the requests of the recording; a replayed system is for times only, never for losslessness",
        code="LG1503",
    )
