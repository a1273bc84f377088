"""Small engines, requests, and a drafter that knows the reply and errs on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lossguard.records import Request, SamplingParams
from lossguard_mechanisms.drafters.base import DrafterState
from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.engine.core import EngineCore
from lossguard_mechanisms.engine.counter_random import request_key
from lossguard_mechanisms.engine.decoding import DecodedStep, DecodeInputs, DecodeStage, Speculation
from lossguard_mechanisms.engine.graphs import DecodeGraphs, decoded
from lossguard_mechanisms.engine.loading import StageMaker
from lossguard_mechanisms.engine.memory import Memory, MemorySizes
from lossguard_mechanisms.engine.sequence import Job
from lossguard_mechanisms.engine.sequence import Sequence as EngineSequence
from lossguard_mechanisms.engine.speculation import ChainPolicy, SampleAndMatch
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.rows import Rows
from lossguard_mechanisms.trees.choice import LatticeSizes, TreeOrder, policy_for

PAGE_SIZE = 4


def request(name: str, prompt: Sequence[int], max_tokens: int, **sampling: object) -> Request:
    """A request for a small vocabulary."""
    params = SamplingParams(max_tokens=max_tokens, **sampling)  # type: ignore[arg-type]
    return Request(id=name, prompt_ids=tuple(prompt), sampling=params, set="test", cluster=name)


def job_of(asked: Request) -> Job:
    """The job of a request, as the adapter would make it."""
    sampling = asked.sampling
    return Job(
        request=asked,
        key=request_key(sampling.seed or 0, asked.id, asked.repeat_id),
        stop_ids=frozenset(sampling.stop_ids),
        banned_ids=sampling.stop_ids if sampling.min_tokens else (),
    )


def core_of(  # noqa: PLR0913
    target: Target,
    *,
    slots: int = 4,
    pages: int = 64,
    chunk: int = 16,
    speculation: Speculation | None = None,
    make_stage: StageMaker = DecodeStage,
    has_graphs: bool = False,
) -> EngineCore:
    """A small core over a target in its own dtype. Graphs need an accelerator, or ``EagerGraph`` in their place."""
    surplus = 1 if speculation is None else speculation.policy.num_nodes
    sizes = MemorySizes(
        num_slots=slots,
        num_pages=pages,
        page_size=PAGE_SIZE,
        capacity=pages * PAGE_SIZE,
        num_surplus=surplus,
        dtype=target.embedding.weight.dtype,
        device=torch.device("cpu"),
    )
    memory = Memory(target.config, sizes, drafter=None if speculation is None else speculation.drafter)
    stage = make_stage(target.config, memory, speculation)
    graphs = DecodeGraphs(target, memory, stage) if has_graphs else None
    return EngineCore(target, memory, prefill_chunk=chunk, stage=stage, graphs=graphs)


class EagerGraph:
    """Instead of a captured graph: the same inputs and the same step, run anew each time."""

    num_replays = 0

    def __init__(self, numbers: Any, decode: Callable[[DecodeInputs], Tensor], pool: object) -> None:
        del pool
        self._numbers, self._decode = numbers, decode

    def load(self, sequences: Sequence[EngineSequence]) -> None:
        self._numbers.write(sequences)

    def replay(self, num_sequences: int) -> DecodedStep:
        type(self).num_replays += 1
        return decoded(self._decode(self._numbers.inputs)[:num_sequences])


def serve(core: EngineCore, requests: Sequence[Request]) -> dict[str, tuple[int, ...]]:
    """Replies by request id; integrity is checked after every step."""
    for asked in requests:
        core.add(job_of(asked))
    replies = {}
    while core.has_work:
        for ended in core.step():
            replies[ended.job.request.id] = ended.output().ids
        core.check_integrity()
    return replies


def random_prompts(count: int, *, seed: int, vocab_size: int = 53, longest: int = 40) -> list[list[int]]:
    """Prompts of random lengths, no two alike."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    prompts = [torch.randint(0, vocab_size, (length,), generator=generator).tolist() for length in lengths]
    return [[index % vocab_size, *prompt] for index, prompt in enumerate(prompts)]


class KnowingState(DrafterState):
    """Committed ids per slot."""

    def __init__(self) -> None:  # no tensors
        self.ids: dict[int, list[int]] = {}

    def reset(self, slots: Sequence[int] | Tensor) -> None:
        for slot in slots:
            self.ids[int(slot)] = []

    def copy(self, sources: Sequence[int] | Tensor, targets: Sequence[int] | Tensor) -> None:
        raise AssertionError("the engine has no use for it")


class KnowingDrafter:
    """Drafts the reply that it was told, each token wrong with a chance of its own: all acceptance lengths occur."""

    name = "dflash2"
    feature_layers = (0, 1)

    def __init__(
        self, replies: Mapping[tuple[int, ...], Sequence[int]], *, num_depths: int, vocab_size: int, error_rate: float
    ) -> None:
        self._whole = {prompt: [*prompt, *reply] for prompt, reply in replies.items()}
        self.num_depths = num_depths
        self._vocab_size = vocab_size
        self._error_rate = error_rate
        self._generator = torch.Generator().manual_seed(3)
        self.num_drafts = 0

    def new_state(
        self, num_slots: int, capacity: int, *, dtype: torch.dtype, device: torch.device | str
    ) -> KnowingState:
        return KnowingState()

    def extend(self, state: DrafterState, rows: Rows, ids: Tensor, features: Tensor) -> None:
        assert isinstance(state, KnowingState)
        assert features.shape[0] == ids.shape[0] == rows.positions.shape[0]
        lengths = rows.lengths.tolist()
        padded = rows.pad(ids).tolist()
        for slot, past, length, tokens in zip(
            rows.slots.tolist(), rows.past_lengths.tolist(), lengths, padded, strict=True
        ):
            known = state.ids[slot]
            assert len(known) == past, "committed rows come once and in order"
            known.extend(tokens[:length])

    def draft(self, state: DrafterState, rows: Rows, anchors: Tensor, *, num_depths: int | None = None) -> Lattice:
        assert isinstance(state, KnowingState)
        depth = num_depths or self.num_depths
        self.num_drafts += 1
        chains = [
            self._chain([*state.ids[int(slot)], int(anchor)], depth)
            for slot, anchor in zip(rows.slots, anchors, strict=True)
        ]
        drafted = torch.tensor(chains)
        zeros = torch.zeros(*drafted.shape, 1)
        return Lattice(ids=drafted[..., None], log_probs=zeros, chain=drafted, edges=None, confidence=None)

    def _chain(self, known: list[int], depth: int) -> list[int]:
        whole = next((ids for ids in self._whole.values() if ids[: len(known)] == known), known)
        truth = [*whole[len(known) : len(known) + depth], *([0] * depth)][:depth]
        wrong = torch.rand(depth, generator=self._generator).tolist()
        return [
            (token + 1) % self._vocab_size if chance < self._error_rate else token
            for token, chance in zip(truth, wrong, strict=True)
        ]


class BranchingDrafter(KnowingDrafter):
    """Names several candidates a depth, the reply's own token at a random rank if at all, and scores their pairs."""

    num_candidates = 4
    offset = 0

    def draft(self, state: DrafterState, rows: Rows, anchors: Tensor, *, num_depths: int | None = None) -> Lattice:
        chain = super().draft(state, rows, anchors, num_depths=num_depths).chain
        shape = (*chain.shape, self.num_candidates)
        first = torch.randint(0, self.num_candidates, chain.shape, generator=self._generator)[..., None]
        ids = (chain[..., None] + self.offset + torch.arange(self.num_candidates) - first) % self._vocab_size
        raw = torch.randn(*chain.shape, self.num_candidates + 3, generator=self._generator)
        log_probs = raw.log_softmax(-1).sort(dim=-1, descending=True).values[..., : self.num_candidates]
        edges = torch.randn(*shape, self.num_candidates, generator=self._generator)
        return Lattice(ids=ids, log_probs=log_probs, chain=chain, edges=edges, confidence=None)


class WrongDrafter(BranchingDrafter):
    """Names tokens that are all far from the reply's own."""

    offset = 10


def branching_speculation(
    replies: Mapping[tuple[int, ...], Sequence[int]],
    policy: str,
    *,
    num_nodes: int = 9,
    vocab_size: int = 53,
    drafts: type[BranchingDrafter] = BranchingDrafter,
) -> Speculation:
    """Tree speculation with a drafter that often names the reply's tokens, or never."""
    error_rate = 0.0 if drafts is WrongDrafter else 0.2
    drafter = drafts(replies, num_depths=4, vocab_size=vocab_size, error_rate=error_rate)
    sizes = LatticeSizes(drafter=drafter.name, num_depths=4, num_candidates=drafter.num_candidates)
    chosen, _ = policy_for(TreeOrder(policy=policy, num_nodes=num_nodes), sizes)
    return Speculation(drafter=drafter, policy=chosen, acceptance=SampleAndMatch())


def knowing_speculation(
    replies: Mapping[tuple[int, ...], Sequence[int]],
    *,
    vocab_size: int = 53,
    num_drafts: int = 4,
    error_rate: float = 0.3,
) -> Speculation:
    """Chain speculation with a drafter that knows the replies."""
    drafter = KnowingDrafter(replies, num_depths=num_drafts, vocab_size=vocab_size, error_rate=error_rate)
    return Speculation(drafter=drafter, policy=ChainPolicy(num_drafts), acceptance=SampleAndMatch())
