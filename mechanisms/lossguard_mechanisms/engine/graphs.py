"""Decode steps as CUDA graphs: one per batch tier and context tier, each holding draft, pass, acceptance and commit.

A graph replays fixed kernels on fixed memory: the host writes anchors, slots, lengths and block tables into tensors of
its own and reads the tokens back. Rows of padding go to the spare slot and the spare page. Graphs choose greedily; a
step with sampled requests, bans, log-probabilities or prompt tokens runs without them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lossguard_mechanisms.engine.decoding import DecodedStep, DecodeInputs, DecodeStage
from lossguard_mechanisms.engine.memory import Memory
from lossguard_mechanisms.engine.model import ServedModel
from lossguard_mechanisms.engine.sequence import Sequence
from lossguard_mechanisms.trees.tree import Path

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
        graph.load(sequences, self._memory)
        graph.replay()
        count = len(sequences)
        return DecodedStep(tokens=graph.path.emitted[:count].tolist(), sizes=graph.path.num_nodes[:count].tolist())

    @torch.inference_mode()
    def capture(self, num_sequences: int) -> None:
        """Capture all context tiers of a batch ahead of time."""
        for context in self._contexts:
            self._graph_for(num_sequences, context)

    def _graph_for(self, num_sequences: int, needed: int) -> _Captured:
        batch = next(tier for tier in self._batches if tier >= num_sequences)
        context = next(tier for tier in self._contexts if tier >= needed)
        if (batch, context) not in self._captured:
            inputs = self._empty_inputs(batch, context)
            self._captured[batch, context] = _Captured(inputs, self._decode, self._pool)
        return self._captured[batch, context]

    def _empty_inputs(self, batch: int, context: int) -> DecodeInputs:
        """All rows are padding."""
        memory = self._memory
        width = -(-context // memory.sizes.page_size)

        def filled(shape: tuple[int, ...], value: int) -> Tensor:
            return torch.full(shape, value, dtype=torch.int64, device=memory.sizes.device)

        return DecodeInputs(
            anchors=filled((batch,), 0),
            slots=filled((batch,), memory.spare_slot),
            past_lengths=filled((batch,), 0),
            block_table=filled((batch, width), memory.spare_page),
            longest_context=context,
        )

    def _decode(self, inputs: DecodeInputs) -> Path:
        prepared = self._stage.prepare(inputs)
        ids, positions = prepared.tree.tokens.flatten(), prepared.rows.positions
        output = self._model(ids, positions, prepared.mixing, capture=self._stage.capture)
        chosen = self._model.logits(output.hidden).argmax(dim=-1).view(inputs.anchors.shape[0], -1)
        return self._stage.settle(prepared, chosen, output.features)


class _Captured:
    """One graph with its inputs and outputs."""

    def __init__(self, inputs: DecodeInputs, decode: Callable[[DecodeInputs], Path], pool: Any) -> None:
        self._inputs = inputs
        self._empty = replace(inputs, **{name: getattr(inputs, name).clone() for name in _NAMES})
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(NUM_WARM_UPS):
                decode(inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self.path: Path = decode(inputs)

    def load(self, sequences: Several[Sequence], memory: Memory) -> None:
        """Write the step's numbers; rows that are not needed become padding."""
        spare, width = memory.spare_page, self._inputs.block_table.shape[1]
        tables = [[*sequence.pages[:width], *([spare] * (width - len(sequence.pages)))] for sequence in sequences]
        columns = {
            "anchors": [sequence.tokens[-1] for sequence in sequences],
            "slots": [sequence.slot for sequence in sequences],
            "past_lengths": [sequence.num_computed for sequence in sequences],
            "block_table": tables,
        }
        for name, values in columns.items():
            target: Tensor = getattr(self._inputs, name)
            target[: len(sequences)].copy_(torch.tensor(values))
            target[len(sequences) :].copy_(getattr(self._empty, name)[len(sequences) :])

    def replay(self) -> None:
        """Run it."""
        self._graph.replay()


_NAMES = ("anchors", "slots", "past_lengths", "block_table")
