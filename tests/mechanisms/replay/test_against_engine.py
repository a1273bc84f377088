"""Replay takes the very steps that the embedded engine takes, request by request."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import cast

import pytest
import torch
from torch import Tensor

from lossguard.records import Request, SamplingParams
from lossguard_mechanisms.drafters.base import Drafter
from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.engine.decoding import Speculation
from lossguard_mechanisms.engine.speculation import ChainPolicy, SampleAndMatch
from lossguard_mechanisms.replay.choice import choose_policies
from lossguard_mechanisms.replay.generation import generate
from lossguard_mechanisms.replay.policies import Chain
from lossguard_mechanisms.replay.record import record
from lossguard_mechanisms.replay.replies import replies_of
from lossguard_mechanisms.replay.walk import replay
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.rows import Rows
from lossguard_mechanisms.trees.choice import LatticeSizes, TreeOrder, policy_for
from lossguard_mechanisms.trees.names import TREES
from tests.mechanisms.engine.doubles import core_of, job_of
from tests.mechanisms.replay.toy_recordings import provenance
from tests.mechanisms.targets.tiny import pair, random_ids

NUM_DEPTHS = 4
ERROR_RATE = 0.35


class CommittedIds:
    """The committed ids of every slot."""

    def __init__(self, num_slots: int) -> None:
        self.ids: list[list[int]] = [[] for _ in range(num_slots)]

    def reset(self, slots: Sequence[int] | Tensor) -> None:
        """See ``DrafterState``."""
        for slot in torch.as_tensor(slots).tolist():
            self.ids[slot] = []


class ErringDrafter:
    """Knows the replies and errs at places that depend on the committed ids alone."""

    name = "dflash2"
    num_depths = NUM_DEPTHS
    feature_layers = (0, 1)

    def __init__(self, replies: Mapping[str, Sequence[int]], requests: Sequence[Request], *, vocab_size: int) -> None:
        self._whole = [[*request.prompt_ids, *replies[request.id]] for request in requests]
        self._vocab_size = vocab_size

    def new_state(
        self, num_slots: int, capacity: int, *, dtype: torch.dtype, device: torch.device | str
    ) -> CommittedIds:
        """See ``Drafter``."""
        return CommittedIds(num_slots)

    def extend(self, state: CommittedIds, rows: Rows, ids: Tensor, features: Tensor) -> None:
        """See ``Drafter``."""
        lengths = rows.lengths.tolist()
        parts = rows.pad(ids).tolist()
        for slot, past, length, part in zip(
            rows.slots.tolist(), rows.past_lengths.tolist(), lengths, parts, strict=True
        ):
            assert len(state.ids[slot]) == past, "committed rows come once and in order"
            state.ids[slot] += part[:length]

    def draft(self, state: CommittedIds, rows: Rows, anchors: Tensor, *, num_depths: int | None = None) -> Lattice:
        """See ``Drafter``."""
        known = [[*state.ids[slot], anchor] for slot, anchor in zip(rows.slots.tolist(), anchors.tolist(), strict=True)]
        chain = torch.tensor([self._chain(ids, num_depths or self.num_depths) for ids in known])
        return Lattice(
            ids=chain[:, :, None],
            log_probs=torch.zeros(*chain.shape, 1),
            chain=chain,
            edges=None,
            confidence=None,
        )

    def _chain(self, known: list[int], num_depths: int) -> list[int]:
        whole = next((ids for ids in self._whole if ids[: len(known)] == known), known)
        truth = [*whole[len(known) : len(known) + num_depths], *([0] * num_depths)][:num_depths]
        draws = [zlib.crc32(repr((known, depth)).encode()) / 2**32 for depth in range(num_depths)]
        return [
            (token + 1) % self._vocab_size if draw < ERROR_RATE else token
            for token, draw in zip(truth, draws, strict=True)
        ]


@pytest.fixture(scope="module")
def target() -> Target:
    return pair("qwen3_5_text").ours


def requests_of(target: Target, temperature: float) -> list[Request]:
    """Replies that end by length, and two by a stop token that the target chooses on its way."""
    requests = [
        Request(
            id=f"r{index}",
            prompt_ids=tuple(random_ids(2 + 3 * index, seed=index).tolist()),
            sampling=SamplingParams(max_tokens=8 + 5 * index, temperature=temperature, seed=3),
            set="toy",
            cluster=f"r{index}",
        )
        for index in range(6)
    ]
    free = generate(target, requests, rows_at_once=10**6)
    stops = {"r3": free["r3"][9], "r5": free["r5"][17]}
    return [
        Request(
            id=request.id,
            prompt_ids=request.prompt_ids,
            sampling=SamplingParams(
                max_tokens=request.sampling.max_tokens,
                temperature=temperature,
                seed=3,
                stop_ids=(stops[request.id],) if request.id in stops else (),
            ),
            set="toy",
            cluster=request.id,
        )
        for request in requests
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("slots", [1, 4])
def test_replay_takes_the_steps_of_the_engine(target: Target, temperature: float, slots: int) -> None:
    requests = requests_of(target, temperature)
    replies = generate(target, requests, rows_at_once=10**6)
    drafter = cast(Drafter, ErringDrafter(replies, requests, vocab_size=target.config.vocab_size))
    origin = provenance(vocab_size=target.config.vocab_size, temperature=temperature)
    recording = record(target, drafter, replies_of(requests, replies), origin)
    expected = replay(recording, Chain(num_depths=NUM_DEPTHS))

    speculation = Speculation(drafter=drafter, policy=ChainPolicy(NUM_DEPTHS), acceptance=SampleAndMatch())
    core = core_of(target, slots=slots, pages=200, chunk=7, speculation=speculation)
    for request in requests:
        core.add(job_of(request))
    ended = {sequence.job.request.id: sequence for _ in range(10**4) if core.has_work for sequence in core.step()}

    assert {name: sequence.served for name, sequence in ended.items()} == replies
    steps = [ended[request.id].counts.num_drafted // NUM_DEPTHS for request in requests]  # the prefill drafts nothing
    assert expected.steps.tolist() == steps
    assert expected.tokens.tolist() == [len(replies[request.id]) - 1 for request in requests]
    assert 1.5 < expected.tau < NUM_DEPTHS


class BranchingDrafter(ErringDrafter):
    """Four candidates a depth, the reply's own at a rank that depends on the committed ids alone, and their pairs."""

    num_candidates = 4

    def draft(self, state: CommittedIds, rows: Rows, anchors: Tensor, *, num_depths: int | None = None) -> Lattice:
        """See ``Drafter``."""
        chain = super().draft(state, rows, anchors, num_depths=num_depths).chain
        known = [[*state.ids[slot], anchor] for slot, anchor in zip(rows.slots.tolist(), anchors.tolist(), strict=True)]
        found = [self._candidates(ids, row) for ids, row in zip(known, chain.tolist(), strict=True)]
        ids, log_probs, edges = (torch.stack(parts) for parts in zip(*found, strict=True))
        return Lattice(ids=ids, log_probs=log_probs, chain=chain, edges=edges, confidence=None)

    def _candidates(self, known: list[int], chain: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(zlib.crc32(repr(known).encode()))
        depths, count = len(chain), self.num_candidates
        first = torch.randint(0, count, (depths, 1), generator=generator)
        ids = (torch.tensor(chain)[:, None] + torch.arange(count) - first) % self._vocab_size
        raw = torch.randn(depths, count + 2, generator=generator).log_softmax(-1)
        pairs = torch.randn(depths, count, count, generator=generator)
        pairs[0] = pairs[0, 0]
        return ids, raw.sort(dim=-1, descending=True).values[:, :count], pairs


@pytest.mark.parametrize("policy", TREES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_replay_takes_the_steps_of_the_engines_trees(target: Target, policy: str, temperature: float) -> None:
    requests = requests_of(target, temperature)
    replies = generate(target, requests, rows_at_once=10**6)
    drafter = BranchingDrafter(replies, requests, vocab_size=target.config.vocab_size)
    origin = provenance(vocab_size=target.config.vocab_size, temperature=temperature)
    recording = record(target, cast(Drafter, drafter), replies_of(requests, replies), origin)
    (replayed,) = choose_policies([policy], [10], recording.lattices, "dflash2").policies
    expected = replay(recording, replayed)

    sizes = LatticeSizes(drafter="dflash2", num_depths=NUM_DEPTHS, num_candidates=drafter.num_candidates)
    built, _ = policy_for(TreeOrder(policy=policy, num_nodes=10), sizes)
    speculation = Speculation(drafter=cast(Drafter, drafter), policy=built, acceptance=SampleAndMatch())
    core = core_of(target, slots=4, pages=200, chunk=7, speculation=speculation)
    for request in requests:
        core.add(job_of(request))
    ended = {sequence.job.request.id: sequence for _ in range(10**4) if core.has_work for sequence in core.step()}
    assert {name: sequence.served for name, sequence in ended.items()} == replies
    assert expected.steps.tolist() == [ended[request.id].counts.num_steps for request in requests]
    assert 1.3 < expected.tau < NUM_DEPTHS
