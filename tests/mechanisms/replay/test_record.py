"""Recording gives what the drafter says at each position by itself, in any batches and chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch

from lossguard.errors import UsageError
from lossguard.records import Request, SamplingParams
from lossguard_mechanisms.drafters.base import Drafter
from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.replay.columns import RecordingOptions, kept_columns
from lossguard_mechanisms.replay.generation import generate
from lossguard_mechanisms.replay.record import record
from lossguard_mechanisms.replay.recording import Recording, Replies
from lossguard_mechanisms.replay.replies import replies_of
from lossguard_mechanisms.replay.soundness import problems_of
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.naive import NaiveMixing
from lossguard_mechanisms.targets.rows import rows_of
from tests.mechanisms.replay.stub_drafter import NUM_CANDIDATES, StubDrafter
from tests.mechanisms.replay.toy_recordings import provenance
from tests.mechanisms.targets.tiny import pair, random_ids

PROMPTS, LENGTHS = (5, 2, 9, 3), (7, 12, 1, 6)


@pytest.fixture(scope="module")
def target() -> Target:
    return pair("qwen3_5_text").ours


def requests_of(*, temperature: float = 0.0, stop_ids: tuple[int, ...] = ()) -> list[Request]:
    return [
        Request(
            id=f"r{index}",
            prompt_ids=tuple(random_ids(num_prompt, seed=index).tolist()),
            sampling=SamplingParams(max_tokens=num_tokens, temperature=temperature, seed=5, stop_ids=stop_ids),
            set=f"set-{index % 2}",
            cluster=f"r{index}",
        )
        for index, (num_prompt, num_tokens) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]


@pytest.fixture(scope="module")
def said(target: Target) -> Replies:
    requests = requests_of()
    return replies_of(requests, generate(target, requests, rows_at_once=10**6))


def stub(target: Target, *, has_pairs: bool = True) -> Drafter:
    """Its state is of a kind of its own."""
    return cast(Drafter, StubDrafter(target, has_pairs=has_pairs))


def recorded(
    target: Target, said: Replies, options: RecordingOptions | None = None, *, has_pairs: bool = True
) -> Recording:
    drafter = stub(target, has_pairs=has_pairs)
    return record(target, drafter, said, provenance(vocab_size=target.config.vocab_size), options)


def lattice_alone(target: Target, drafter: StubDrafter, tokens: list[int]) -> Lattice:
    """What the drafter says after ``tokens``, of which the last is the anchor: everything computed from the start."""
    past = torch.tensor(tokens[:-1])
    with torch.no_grad():
        output = target(past, torch.arange(len(past)), NaiveMixing(dtype=torch.float32), capture=drafter.feature_layers)
    state = drafter.new_state(1, len(tokens), dtype=torch.float32, device="cpu")
    drafter.extend(state, rows_of([0], [0], [len(past)]), past, torch.cat(output.features, dim=1))
    return drafter.draft(state, rows_of([0], [len(past)], [1]), torch.tensor(tokens[-1:]))


def test_every_position_has_what_the_drafter_says_there(target: Target, said: Replies) -> None:
    found = recorded(target, said)
    assert problems_of(found) == []
    drafter = StubDrafter(target)
    for request in range(said.num_requests):
        rows, tokens = found.of_request(request), [*said.prompt(request).tolist(), *said.reply(request).tolist()]
        assert rows.num_positions == LENGTHS[request]
        for place in range(LENGTHS[request]):
            alone = lattice_alone(target, drafter, tokens[: PROMPTS[request] + place])
            assert rows.ids[place].tolist() == alone.ids[0].tolist()
            assert rows.chain[place].tolist() == alone.chain[0].tolist()
            assert np.allclose(rows.log_probs[place], alone.log_probs[0].numpy(), rtol=1e-3, atol=1e-4)


def test_batches_and_chunks_change_nothing(target: Target, said: Replies) -> None:
    whole = recorded(target, said).lattices
    for options in (
        RecordingOptions(rows_at_once=1),
        RecordingOptions(rows_at_once=25, chunk_length=4),
        RecordingOptions(chunk_length=1),
    ):
        other = recorded(target, said, options).lattices
        assert other.ids.tolist() == whole.ids.tolist()
        assert np.allclose(other.log_probs, whole.log_probs, rtol=2e-3, atol=1e-3)
        assert other.edges is not None
        assert whole.edges is not None
        assert np.allclose(other.edges, whole.edges, rtol=2e-3, atol=1e-3)


def test_edges_are_conditional_log_probabilities_with_the_mass_of_all_candidates(target: Target) -> None:
    drafter = StubDrafter(target)
    lattice = lattice_alone(target, drafter, random_ids(6, seed=3).tolist())
    columns = kept_columns(lattice, RecordingOptions())
    mass = lattice.log_probs.exp().sum(dim=2)
    assert torch.allclose(columns["anchor_edges"].float().exp().sum(dim=1), mass[:, 0], atol=2e-3)
    assert torch.allclose(columns["edges"].float().exp().sum(dim=3), mass[:, 1:, None].expand(-1, -1, 6), atol=2e-3)
    assert lattice.edges is not None
    assert (columns["edges"].argmax(dim=3) == lattice.edges[:, 1:].argmax(dim=3)).all()
    fewer = kept_columns(lattice, RecordingOptions(num_edge_candidates=2))
    assert torch.equal(fewer["edges"], columns["edges"][:, :, :2, :2])
    assert torch.equal(fewer["anchor_edges"], columns["anchor_edges"][:, :2])
    assert "edges" not in kept_columns(lattice, RecordingOptions(num_edge_candidates=0))


def test_options_keep_less(target: Target, said: Replies) -> None:
    found = recorded(target, said, RecordingOptions(num_depths=2, num_candidates=4, num_edge_candidates=3)).lattices
    assert (found.num_depths, found.num_candidates, found.num_edge_candidates) == (2, 4, 3)
    whole = recorded(target, said).lattices
    assert found.ids.tolist() == whole.ids[:, :2, :4].tolist()
    plain = recorded(target, said, has_pairs=False).lattices
    assert plain.edges is plain.anchor_edges is plain.confidence is None
    assert plain.num_candidates == NUM_CANDIDATES


def test_log_probabilities_out_of_range_are_kept_as_the_least() -> None:
    lattice = Lattice(
        ids=torch.tensor([[[1, 2]]]),
        log_probs=torch.tensor([[[0.0, -torch.inf]]]),
        chain=torch.tensor([[1]]),
        edges=None,
        confidence=None,
    )
    assert kept_columns(lattice, RecordingOptions())["log_probs"].tolist() == [[[0.0, -1000.0]]]


def test_greedy_replies_of_the_target_agree_with_it_and_others_are_refused(target: Target, said: Replies) -> None:
    assert "100.00 % of the reply tokens" in recorded(target, said).provenance.notes[-1]
    other = replace(said, reply_ids=(said.reply_ids + 1) % target.config.vocab_size)
    with pytest.raises(UsageError, match="LG1611"):
        recorded(target, other)
    sampled = provenance(vocab_size=target.config.vocab_size, temperature=0.7)
    assert record(target, stub(target), other, sampled).provenance.notes == ()


@pytest.mark.parametrize(
    "options",
    [RecordingOptions(num_depths=4), RecordingOptions(num_candidates=0), RecordingOptions(num_edge_candidates=-1)],
)
def test_options_that_the_drafter_cannot_serve_are_refused(
    target: Target, said: Replies, options: RecordingOptions
) -> None:
    with pytest.raises(UsageError, match="LG1614"):
        recorded(target, said, options)


def test_replies_past_the_context_are_refused(target: Target) -> None:
    requests = requests_of()[:1]
    longest = target.config.max_position_embeddings
    with pytest.raises(UsageError, match="LG1610"):
        recorded(target, replies_of(requests, {"r0": [1] * (longest - 4)}))
