"""Decode steps as CUDA graphs: one per batch tier and context tier, each holding draft, pass, acceptance and commit.

A graph replays fixed kernels on fixed memory: the host writes anchors, slots, lengths and block tables into tensors of
its own and reads the tokens back. Rows of padding go to the spare slot and the spare page. Steps of greedy sequences
alone have their graphs; with a sampled request keys and temperatures are sent too, and every row draws. A step with
filters (top-k, top-p, min-p), bans, processors, log-probabilities or prompt tokens runs without graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lossguard_mechanisms.engine.counter_random import uniforms
from lossguard_mechanisms.engine.decoding import DecodedStep, DecodeInputs, DecodeStage, Draws, PreparedDecode
from lossguard_mechanisms.engine.memory import Memory
from lossguard_mechanisms.engine.model import ServedModel
from lossguard_mechanisms.engine.sampler import chosen_ids
from lossguard_mechanisms.engine.sequence import Sequence
from lossguard_mechanisms.trees.tree import has_refused

Uniforms: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From keys [N] and positions [N] to numbers [N]: ``counter_random.uniforms``."""

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
        self._captured: dict[tuple[int, int, bool], _Captured] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._uniforms: Uniforms = uniforms
        if memory.sizes.acceleration.is_compiled:  # integers: the same numbers, in one kernel instead of some 170
            self._uniforms = torch.compile(uniforms, dynamic=True, fullgraph=True)

    def run(self, sequences: Several[Sequence]) -> DecodedStep:
        """One decode step of sequences that ``fits_graphs``; states are committed, tokens are not appended."""
        needed = max(sequence.num_computed for sequence in sequences) + self._stage.num_nodes
        is_sampled = any(not sequence.job.request.sampling.is_greedy for sequence in sequences)
        graph = self._graph_for(len(sequences), needed, is_sampled=is_sampled)
        graph.load(sequences)
        return graph.replay(len(sequences))

    @torch.inference_mode()
    def capture(self, num_sequences: int, *, is_sampled: bool = False) -> None:
        """Capture all context tiers of a batch ahead of time."""
        for context in self._contexts:
            self._graph_for(num_sequences, context, is_sampled=is_sampled)

    def _graph_for(self, num_sequences: int, needed: int, *, is_sampled: bool) -> _Captured:
        batch = next(tier for tier in self._batches if tier >= num_sequences)
        context = next(tier for tier in self._contexts if tier >= needed)
        if (batch, context, is_sampled) not in self._captured:
            width = -(-context // self._memory.sizes.page_size)
            numbers = _Numbers(self._memory, batch=batch, width=width, longest_context=context, is_sampled=is_sampled)
            self._captured[batch, context, is_sampled] = _Captured(numbers, self._decode, self._pool)
        return self._captured[batch, context, is_sampled]

    def _decode(self, inputs: DecodeInputs) -> Tensor:
        """[B, L + 2]: emitted tokens, how many of them, and whether drafts were refused."""
        prepared = self._stage.prepare(inputs)
        ids, positions = prepared.tree.tokens.flatten(), prepared.rows.positions
        output = self._model(ids, positions, prepared.mixing, capture=self._stage.capture)
        chosen = choices(self._model.logits(output.hidden), prepared, self._uniforms)
        path = self._stage.settle(prepared, chosen, output.features)
        refused = has_refused(prepared.tree, path)
        return torch.cat((path.emitted, path.num_nodes[:, None], refused[:, None].long()), dim=1)


def fits_graphs(sequence: Sequence) -> bool:
    """Whether a sequence asks for nothing that graphs do not do."""
    job, sampling = sequence.job, sequence.job.request.sampling
    has_filters = not sampling.is_greedy and (sampling.top_k or sampling.top_p < 1.0 or sampling.min_p)
    is_banned = len(sequence.served) < sampling.min_tokens
    return not (has_filters or is_banned or sampling.logprobs or job.processing is not None)


def choices(logits: Tensor, prepared: PreparedDecode, numbers: Uniforms) -> Tensor:
    """[B, N] the target's token after each node, from ``logits`` [B * N, V]: greedy, or by the draws of the inputs.

    ``numbers`` is ``counter_random.uniforms``, compiled or not.
    """
    inputs, tree = prepared.inputs, prepared.tree
    draws = inputs.draws
    if draws is None:
        return logits.argmax(dim=-1).view(inputs.anchors.shape[0], -1)
    positions = (tree.positions(inputs.past_lengths) + 1).flatten()
    temperatures, keys = (part.repeat_interleave(tree.num_nodes) for part in (draws.temperatures, draws.keys))
    return chosen_ids(logits, temperatures, numbers(keys, positions)).view(inputs.anchors.shape[0], -1)


class _Numbers:
    """A graph's inputs, all in one tensor, so that the host writes a step's numbers in one copy."""

    def __init__(self, memory: Memory, *, batch: int, width: int, longest_context: int, is_sampled: bool) -> None:
        self._batch, self._width, self._is_sampled = batch, width, is_sampled
        self._spare_slot, self._spare_page = memory.spare_slot, memory.spare_page
        self._device = self._packed(()).to(memory.sizes.device)
        anchors, slots, past_lengths, *drawn, table = self._device.split(
            [batch] * (5 if is_sampled else 3) + [batch * width]
        )
        self.inputs = DecodeInputs(
            anchors=anchors,
            slots=slots,
            past_lengths=past_lengths,
            block_table=table.view(batch, width),
            longest_context=longest_context,
            draws=Draws(keys=drawn[0], temperatures=drawn[1].view(torch.float64)) if is_sampled else None,
        )

    def write(self, sequences: Several[Sequence]) -> None:
        """Rows that are not needed become padding."""
        self._device.copy_(self._packed(sequences))

    def _packed(self, sequences: Several[Sequence]) -> Tensor:
        """Anchors, slots, past lengths, for samples keys and temperatures, and block tables, one after the other."""
        missing, width = self._batch - len(sequences), self._width
        columns = [
            [sequence.tokens[-1] for sequence in sequences] + [0] * missing,
            [sequence.slot for sequence in sequences] + [self._spare_slot] * missing,
            [sequence.num_computed for sequence in sequences] + [0] * missing,
        ]
        if self._is_sampled:
            temperatures = [sequence.job.request.sampling.temperature for sequence in sequences] + [0.0] * missing
            columns += [
                [sequence.job.key for sequence in sequences] + [0] * missing,
                np.array(temperatures, dtype=np.float64).view(np.int64).tolist(),
            ]
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
        return decoded(self._answer[:num_sequences])


def decoded(answer: Tensor) -> DecodedStep:
    """What a graph's answer [B, L + 2] says."""
    rows = answer.tolist()
    return DecodedStep(
        tokens=[row[:-2] for row in rows], sizes=[row[-2] for row in rows], refused=[bool(row[-1]) for row in rows]
    )
