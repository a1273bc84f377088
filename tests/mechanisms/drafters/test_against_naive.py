"""The fast forms give what the row-by-row references give."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lossguard_mechanisms.drafters.fresh import AnyDrafter
from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.drafters.naive import naive_lattice
from lossguard_mechanisms.targets.rows import rows_of
from tests.mechanisms.drafters.small import NAMES, random_features, random_ids, small_drafter, small_target

TARGET = small_target()
DRAFTERS = {name: small_drafter(name, TARGET) for name in NAMES}


def draft_alone(drafter: AnyDrafter, num_tokens: int, seed: int, *, num_depths: int) -> tuple[Lattice, Lattice]:
    """The lattice after ``num_tokens`` tokens, the last of them the anchor: fast and naive."""
    ids, features = random_ids(num_tokens, seed=seed), random_features(drafter, num_tokens - 1, seed=seed)
    state = drafter.new_state(3, 32, dtype=torch.float64)
    drafter.extend(state, rows_of([1], [0], [num_tokens - 1]), ids[:-1], features)
    rows = rows_of([1], [num_tokens - 1], [1])
    fast = drafter.draft(state, rows, ids[-1:], num_depths=num_depths)
    return fast, naive_lattice(drafter, ids.tolist(), features, num_depths=num_depths)


def same(fast: Lattice, naive: Lattice) -> None:
    assert torch.equal(fast.ids, naive.ids)
    assert torch.equal(fast.chain, naive.chain)
    torch.testing.assert_close(fast.log_probs, naive.log_probs, rtol=0, atol=3e-5)
    for name in ("edges", "confidence"):
        found, expected = getattr(fast, name), getattr(naive, name)
        assert (found is None) == (expected is None)
        if found is not None:
            torch.testing.assert_close(found, expected.to(found.dtype), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@given(num_tokens=st.integers(2, 9), num_depths=st.integers(1, 5), seed=st.integers(0, 1000))
@settings(max_examples=30)
def test_a_lattice_is_the_naive_one(name: str, num_tokens: int, num_depths: int, seed: int) -> None:
    same(*draft_alone(DRAFTERS[name], num_tokens, seed, num_depths=num_depths))


@pytest.mark.parametrize("name", NAMES)
def test_an_own_head_is_read(name: str) -> None:
    drafter = small_drafter(name, small_target(is_tied=False))
    same(*draft_alone(drafter, 6, 7, num_depths=5))
