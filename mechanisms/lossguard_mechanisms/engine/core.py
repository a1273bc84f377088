"""The loop: plan a step, run it through the target once, choose tokens, commit, retire what has ended."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard.errors import UsageError
from lossguard_mechanisms.engine.decoding import DecodedStep, DecodeInputs, DecodeStage, PreparedDecode
from lossguard_mechanisms.engine.graphs import DecodeGraphs, fits_graphs
from lossguard_mechanisms.engine.memory import Memory
from lossguard_mechanisms.engine.mixings import CommittedMixing
from lossguard_mechanisms.engine.model import ServedModel
from lossguard_mechanisms.engine.replies import report_logprobs, row_sampling
from lossguard_mechanisms.engine.sampler import best_ids, choose
from lossguard_mechanisms.engine.scheduler import Chunk, Scheduler, StepPlan
from lossguard_mechanisms.engine.sequence import NOTHING_DRAFTED, Drafted, Job, Sequence
from lossguard_mechanisms.engine.w12_target import Conversion
from lossguard_mechanisms.targets.joined import JoinedMixing
from lossguard_mechanisms.targets.mixing import Mixing
from lossguard_mechanisms.targets.rows import Rows, rows_of
from lossguard_mechanisms.trees.tree import has_refused


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedChunks:
    """Prompt rows of a step."""

    chunks: tuple[Chunk, ...]
    ids: Tensor
    rows: Rows
    mixing: Mixing
    wanted: Tensor  # rows after which a token is chosen: the ends of prompts


class EngineCore:
    """Serves jobs step by step. Not shared between threads; ``step`` raises nothing of its own."""

    def __init__(
        self,
        model: ServedModel,
        memory: Memory,
        *,
        prefill_chunk: int,
        stage: DecodeStage,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self._model = model
        self._memory = memory
        self._scheduler = Scheduler(memory, prefill_chunk=prefill_chunk)
        self._stage = stage
        self._graphs = graphs
        self.conversion: Conversion | None = None
        """What of the model's weights is in W12; None where they were loaded as they are."""

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return self._scheduler.has_work

    @property
    def running(self) -> tuple[Sequence, ...]:
        """The sequences that are alive."""
        return tuple(self._scheduler.running)

    def add(self, job: Job) -> None:
        """Queue a job. Raises UsageError LG1504 for one that could never be admitted."""
        needed = self._memory.num_pages_for(job)
        if needed > self._memory.pages.size or job.num_positions + self._stage.num_nodes > self._memory.sizes.capacity:
            raise _too_long(job, self._memory)
        self._scheduler.waiting.append(job)

    def cancel(self, request_id: str) -> bool:
        """Drop a request and free what it holds; False if it is not here."""
        return self._scheduler.cancel(request_id)

    def check_integrity(self) -> None:
        """Every slot and page has one owner or none. Raises IntegrityError LG1505."""
        self._memory.check_integrity(self._scheduler.running)

    @torch.inference_mode()
    def step(self) -> list[Sequence]:
        """One pass of the target; returns the sequences that ended with it."""
        plan = self._scheduler.plan()
        if self._graphs is not None and plan.decoding and not plan.chunks and all(map(fits_graphs, plan.decoding)):
            self._advance(plan.decoding, self._graphs.run(plan.decoding))
        elif plan.decoding or plan.chunks:
            self._run(plan, self._prepare_decode(plan.decoding), self._prepare_chunks(plan.chunks))
        ended = self._scheduler.retire()
        if not self._scheduler.has_work:
            self.check_integrity()
        return ended

    def _run(self, plan: StepPlan, decode: PreparedDecode | None, chunks: PreparedChunks | None) -> None:
        parts = [part for part in (decode, chunks) if part is not None]
        lengths = [part.rows.positions.shape[0] for part in parts]
        ids = torch.cat([part.ids for part in parts])
        positions = torch.cat([part.rows.positions for part in parts])
        mixings = [(length, part.mixing) for length, part in zip(lengths, parts, strict=True)]
        mixing = mixings[0][1] if len(parts) == 1 else JoinedMixing(mixings)
        output = self._model(ids, positions, mixing, capture=self._stage.capture)
        num_decode = 0 if decode is None else lengths[0]
        wanted = output.hidden if chunks is None else self._wanted(output.hidden, num_decode, chunks)
        logits = self._model.logits(wanted)
        if decode is not None:
            features = tuple(part[:num_decode] for part in output.features)
            self._settle_decode(plan.decoding, decode, logits[:num_decode], features)
        if chunks is not None:
            features = tuple(part[num_decode:] for part in output.features)
            self._settle_chunks(chunks, logits[num_decode:], features)

    @staticmethod
    def _wanted(hidden: Tensor, num_decode: int, chunks: PreparedChunks) -> Tensor:
        ends = hidden[num_decode:].index_select(0, chunks.wanted)
        return torch.cat((hidden[:num_decode], ends)) if num_decode else ends

    def _prepare_decode(self, sequences: Several[Sequence]) -> PreparedDecode | None:
        if not sequences:
            return None
        past = [sequence.num_computed for sequence in sequences]
        device = self._memory.sizes.device
        inputs = DecodeInputs(
            anchors=torch.tensor([sequence.tokens[-1] for sequence in sequences], device=device),
            slots=torch.tensor([sequence.slot for sequence in sequences], device=device),
            past_lengths=torch.tensor(past, device=device),
            block_table=self._block_table(sequences),
            longest_context=max(past) + self._stage.num_nodes,
        )
        return self._stage.prepare(inputs)

    def _prepare_chunks(self, chunks: tuple[Chunk, ...]) -> PreparedChunks | None:
        if not chunks:
            return None
        sequences, memory = [chunk.sequence for chunk in chunks], self._memory
        for sequence in sequences:
            if not sequence.num_computed:
                self._stage.begin(sequence)
        begins = [sequence.num_computed for sequence in sequences]
        lengths = [chunk.length for chunk in chunks]
        device = memory.sizes.device
        rows = rows_of([sequence.slot for sequence in sequences], begins, lengths, device=device)
        layout = memory.key_values.layout(rows, self._block_table(sequences))
        parts = [
            sequence.tokens[begin : begin + length]
            for sequence, begin, length in zip(sequences, begins, lengths, strict=True)
        ]
        ends = torch.tensor(lengths).cumsum(0) - 1
        return PreparedChunks(
            chunks=chunks,
            ids=torch.tensor([token for part in parts for token in part], device=device),
            rows=rows,
            mixing=CommittedMixing(rows, layout, recurrent=memory.recurrent, key_values=memory.key_values),
            wanted=ends[torch.tensor([chunk.is_last for chunk in chunks])].to(device),
        )

    def _settle_decode(
        self, sequences: Several[Sequence], decode: PreparedDecode, logits: Tensor, features: tuple[Tensor, ...]
    ) -> None:
        depths = decode.tree.depths.tolist() if any(_needs_rows(sequence) for sequence in sequences) else None
        if depths is None:
            chosen = best_ids(logits)
        else:
            pairs = [(sequence, depth) for sequence, row in zip(sequences, depths, strict=True) for depth in row]
            chosen = choose(logits, [row_sampling(sequence, depth) for sequence, depth in pairs])
        chosen = chosen.view(len(sequences), -1)
        path = self._stage.settle(decode, chosen, features)
        report_logprobs(sequences, logits.unflatten(0, chosen.shape), chosen, path)
        refused = has_refused(decode.tree, path).tolist()
        self._advance(
            sequences, DecodedStep(tokens=path.emitted.tolist(), sizes=path.num_nodes.tolist(), refused=refused)
        )

    def _advance(self, sequences: Several[Sequence], decoded: DecodedStep) -> None:
        steps = zip(sequences, decoded.tokens, decoded.sizes, decoded.refused, strict=True)
        for sequence, tokens, size, is_refused in steps:
            sequence.num_computed += size
            drafted = Drafted(num_nodes=self._stage.num_nodes - 1, is_refused=is_refused)
            sequence.advance(tokens[:size], drafted=drafted, batch_size=len(sequences))

    def _settle_chunks(self, chunks: PreparedChunks, logits: Tensor, features: tuple[Tensor, ...]) -> None:
        if features:
            self._stage.extend_with_prompt(chunks.rows, chunks.ids, features)
        complete = [chunk.sequence for chunk in chunks.chunks if chunk.is_last]
        for chunk in chunks.chunks:
            chunk.sequence.num_computed += chunk.length
        if complete:
            own = choose(logits, [row_sampling(sequence, 0) for sequence in complete])
            chosen = self._stage.first_tokens(complete, own)
            report_logprobs(complete, logits[:, None], chosen[:, None], None)
            for sequence, token in zip(complete, chosen.tolist(), strict=True):
                sequence.advance([token], drafted=NOTHING_DRAFTED, batch_size=len(complete))

    def _block_table(self, sequences: Several[Sequence]) -> Tensor:
        longest = max(len(sequence.pages) for sequence in sequences)
        spare = self._memory.spare_page
        rows = [[*sequence.pages, *([spare] * (longest - len(sequence.pages)))] for sequence in sequences]
        return torch.tensor(rows, device=self._memory.sizes.device)


def _needs_rows(sequence: Sequence) -> bool:
    job = sequence.job
    sampling = job.request.sampling
    return not sampling.is_greedy or len(sequence.served) < sampling.min_tokens or job.processing is not None


def _too_long(job: Job, memory: Memory) -> UsageError:
    room = min(memory.pages.size * memory.sizes.page_size, memory.sizes.capacity)
    return UsageError(
        f"request {job.request.id!r} needs {job.num_positions} positions and those of drafts, the engine has {room}",
        why="a request that can never be admitted would hold back all others",
        fix="raise cache_tokens in the system's table, or shorten the prompt or max_tokens",
        code="LG1504",
    )
