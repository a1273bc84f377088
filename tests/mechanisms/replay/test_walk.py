"""Going through replies step by step, against an engine's loop written out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lossguard_mechanisms.replay.policies import Chain, Oracle
from lossguard_mechanisms.replay.walk import replay, walk
from tests.mechanisms.replay.toy_recordings import recording


def serve_by_chain(
    reply: Sequence[int], chains: Sequence[Sequence[int]], *, prefill_emits: bool
) -> tuple[int, list[int]]:
    """Steps of one request and what each emitted, as an engine goes: draft, compare, emit, stop at the reply's end."""
    served = [reply[0]] if prefill_emits else []
    emitted = []
    while len(served) < len(reply):
        position = len(served)
        accepted = []
        for place, drafted in enumerate(chains[position]):
            if position + place >= len(reply) or drafted != reply[position + place]:
                break
            accepted.append(drafted)
        bonus = reply[position + len(accepted) : position + len(accepted) + 1]  # none past the end
        served += [*accepted, *bonus]
        emitted.append(len(accepted) + len(bonus))
    assert served == list(reply)
    return len(emitted), emitted


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    num_depths=st.integers(1, 6),
    prefill_emits=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_replay_takes_the_steps_of_an_engine(
    lengths: list[int], num_depths: int, *, prefill_emits: bool, seed: int
) -> None:
    toy = recording(lengths, num_depths=num_depths, seed=seed)
    found = replay(toy, Chain(num_depths=num_depths), prefill_emits=prefill_emits)
    counts = np.zeros(num_depths + 2, dtype=int)
    for request in range(len(lengths)):
        chains = toy.of_request(request).chain.tolist()
        steps, emitted = serve_by_chain(toy.replies.reply(request).tolist(), chains, prefill_emits=prefill_emits)
        assert found.steps[request] == steps
        assert found.tokens[request] == sum(emitted) == lengths[request] - int(prefill_emits)
        counts += np.bincount(emitted, minlength=num_depths + 2)
    assert found.steps_by_emitted.tolist() == counts.tolist()


def test_tau_counts_only_emitted_tokens() -> None:
    """Ten tokens, the first from the prefill; two of three drafts are right: 3 + 3 + 3, the last one cut by the end."""
    accepted = np.full(10, 2)
    whole = walk(accepted, np.array([0, 10]), num_depths=3, prefill_emits=True)
    assert (whole.tokens.tolist(), whole.steps.tolist(), whole.tau) == ([9], [3], 3.0)
    cut = walk(accepted[:9], np.array([0, 9]), num_depths=3, prefill_emits=True)
    assert (cut.tokens.tolist(), cut.steps.tolist()) == ([8], [3])
    assert cut.steps_by_emitted.tolist() == [0, 0, 1, 2, 0]


def test_a_reply_that_the_prefill_ends_has_no_steps() -> None:
    found = walk(np.array([0, 1, 0]), np.array([0, 1, 3]), num_depths=2, prefill_emits=True)
    assert found.steps.tolist() == [0, 1]
    assert found.tau == 1.0
    assert math.isnan(walk(np.array([0]), np.array([0, 1]), num_depths=2, prefill_emits=True).tau)


def test_an_oracle_that_never_misses_takes_full_blocks() -> None:
    toy = recording([15], num_depths=3)
    found = walk(np.full(15, 3), toy.replies.reply_offsets, num_depths=3, prefill_emits=False)
    assert found.steps.tolist() == [4]
    assert found.steps_by_emitted.tolist() == [0, 0, 0, 1, 3]
    assert replay(toy, Oracle(num_depths=3)).steps.tolist() >= [4]
