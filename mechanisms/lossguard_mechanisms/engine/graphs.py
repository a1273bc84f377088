"""Decode steps as CUDA graphs: one per batch tier and context tier, each holding draft, pass, acceptance and commit.

A graph replays fixed kernels on fixed memory: the host writes anchors, slots, lengths and block tables into tensors of
its own and reads the tokens back. Rows of padding go to the spare slot and the spare page. Graphs choose greedily; a
step with sampled requests, bans, log-probabilities or prompt tokens runs without them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from typing import Any

import torch
from torch import Tensor

from lossguard_mechanisms.engine.decoding import DecodedStep, DecodeInputs, DecodeStage
from lossguard_mechanisms.engine.memory import Memory
from lossguard_mechanisms.engine.model import ServedModel
from lossguard_mechanisms.engine.sequence import Sequence
from lossguard_mechanisms.trees.tree import has_refused

SHORTEST_CONTEXT = 256
NUM_WARM_UPS = 2
_FINE_TIER = 8


def batch_tiers(num_slots: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then every eighth up to the number of slots."""
    fine = [size for size in (1, 2, 4) if size < num_slots]
    return (*fine, *range(_FINE_TIER, num_slots, _FINE_TIER), num_slots)


def context_tiers(capacity: int) -> tuple[int, ...]:
    """256 and its doubles, up to the capacity."""
    tiers, tier = [], SHORTEST_CONTEXT
    while tier < capacity:
        tiers.append(tier)
        tier *= 2
    return (*tiers, capacity)


class DecodeGraphs:
    """Captures on first use of a tier; all graphs share their memory, since they never run at the same time."""

    def __init__(self, model: ServedModel, memory: Memory, stage: DecodeStage) -> None:
        self._model = model
        self._memory = memory
        self._stage = stage
        self._batches = batch_tiers(memory.sizes.num_slots)
        self._contexts = context_tiers(memory.sizes.capacity)
        self._captured: dict[tuple[int, int], _Captured] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, sequences: Several[Sequence]) -> DecodedStep:
        """One decode step of greedy sequences; states are committed, tokens are not appended."""
        needed = max(sequence.num_computed for sequence in sequences) + self._stage.num_nodes
        graph = self._graph_for(len(sequences), needed)
        graph.load(sequences)
        return graph.replay(len(sequences))

    @torch.inference_mode()
    def capture(self, num_sequences: int) -> None:
        """Capture all context tiers of a batch ahead of time."""
        for context in self._contexts:
            self._graph_for(num_sequences, context)

    def _graph_for(self, num_sequences: int, needed: int) -> _Captured:
        batch = next(tier for tier in self._batches if tier >= num_sequences)
        context = next(tier for tier in self._contexts if tier >= needed)
        if (batch, context) not in self._captured:
            width = -(-context // self._memory.sizes.page_size)
            numbers = _Numbers(self._memory, batch=batch, width=width, longest_context=context)
            self._captured[batch, context] = _Captured(numbers, self._decode, self._pool)
        return self._captured[batch, context]

    def _decode(self, inputs: DecodeInputs) -> Tensor:
        """[B, L + 2]: emitted tokens, how many of them, and whether drafts were refused."""
        prepared = self._stage.prepare(inputs)
        ids, positions = prepared.tree.tokens.flatten(), prepared.rows.positions
        output = self._model(ids, positions, prepared.mixing, capture=self._stage.capture)
        chosen = self._model.logits(output.hidden).argmax(dim=-1).view(inputs.anchors.shape[0], -1)
        path = self._stage.settle(prepared, chosen, output.features)
        refused = has_refused(prepared.tree, path)
        return torch.cat((path.emitted, path.num_nodes[:, None], refused[:, None].long()), dim=1)


class _Numbers:
    """A graph's inputs, all in one tensor, so that the host writes a step's numbers in one copy."""

    def __init__(self, memory: Memory, *, batch: int, width: int, longest_context: int) -> None:
        self._batch, self._width = batch, width
        self._spare_slot, self._spare_page = memory.spare_slot, memory.spare_page
        self._device = self._packed(()).to(memory.sizes.device)
        anchors, slots, past_lengths, table = self._device.split((batch, batch, batch, batch * width))
        self.inputs = DecodeInputs(
            anchors=anchors,
            slots=slots,
            past_lengths=past_lengths,
            block_table=table.view(batch, width),
            longest_context=longest_context,
        )

    def write(self, sequences: Several[Sequence]) -> None:
        """Rows that are not needed become padding."""
        self._device.copy_(self._packed(sequences))

    def _packed(self, sequences: Several[Sequence]) -> Tensor:
        """Anchors, slots, past lengths and block tables, one after the other."""
        missing, width = self._batch - len(sequences), self._width
        columns = (
            [sequence.tokens[-1] for sequence in sequences] + [0] * missing,
            [sequence.slot for sequence in sequences] + [self._spare_slot] * missing,
            [sequence.num_computed for sequence in sequences] + [0] * missing,
        )
        spare = [self._spare_page] * width
        tables = [[*sequence.pages[:width], *spare][:width] for sequence in sequences] + [spare] * missing
        return torch.tensor([number for row in (*columns, *tables) for number in row])


class _Captured:
    """One graph with its inputs and outputs."""

    def __init__(self, numbers: _Numbers, decode: Callable[[DecodeInputs], Tensor], pool: Any) -> None:
        self._numbers = numbers
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(NUM_WARM_UPS):
                decode(numbers.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._answer = decode(numbers.inputs)

    def load(self, sequences: Several[Sequence]) -> None:
        """Write the step's numbers."""
        self._numbers.write(sequences)

    def replay(self, num_sequences: int) -> DecodedStep:
        """The step of the first sequences; the others are padding."""
        self._graph.replay()
        rows = self._answer[:num_sequences].tolist()
        return DecodedStep(
            tokens=[row[:-2] for row in rows], sizes=[row[-2] for row in rows], refused=[bool(row[-1]) for row in rows]
        )
