"""A state is what was committed, however it came in; drafting leaves it alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lossguard_mechanisms.drafters.fresh import AnyDrafter
from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.drafters.state import DrafterState
from lossguard_mechanisms.targets.rows import Rows, rows_of
from tests.mechanisms.drafters.small import NAMES, random_features, random_ids, small_drafter, small_target

TARGET = small_target()
DRAFTERS = {name: small_drafter(name, TARGET) for name in NAMES}
each_drafter = pytest.mark.parametrize("name", NAMES)


def new_state(drafter: AnyDrafter) -> DrafterState:
    return drafter.new_state(4, 40, dtype=torch.float64)


def extend(drafter: AnyDrafter, state: DrafterState, slot: int, past: int, ids: Tensor, features: Tensor) -> None:
    drafter.extend(state, rows_of([slot], [past], [len(ids)]), ids, features)


def draft(drafter: AnyDrafter, state: DrafterState, slots: Sequence[int], pasts: Sequence[int]) -> Lattice:
    rows = rows_of(slots, pasts, [1] * len(slots))
    return drafter.draft(state, rows, random_ids(4, seed=9)[list(slots)])


def assert_same(found: Lattice, expected: Lattice, places: slice = slice(None)) -> None:
    assert torch.equal(found.ids[places], expected.ids)
    assert torch.equal(found.chain[places], expected.chain)
    torch.testing.assert_close(found.log_probs[places], expected.log_probs, rtol=0, atol=1e-10)
    if found.edges is not None and expected.edges is not None:
        torch.testing.assert_close(found.edges[places], expected.edges, rtol=0, atol=1e-10)


@each_drafter
@given(cuts=st.lists(st.integers(1, 5), min_size=1, max_size=5))
@settings(max_examples=40)
def test_chunks_are_the_same_as_all_at_once(name: str, cuts: list[int]) -> None:
    drafter, length = DRAFTERS[name], sum(cuts)
    ids, features = random_ids(length), random_features(drafter, length)
    whole, cut = new_state(drafter), new_state(drafter)
    extend(drafter, whole, 2, 0, ids, features)
    past = 0
    for size in cuts:
        extend(drafter, cut, 2, past, ids[past : past + size], features[past : past + size])
        past += size
    assert_same(draft(drafter, cut, [2], [length]), draft(drafter, whole, [2], [length]))


@each_drafter
@given(lengths=st.lists(st.integers(1, 7), min_size=2, max_size=4))
@settings(max_examples=40)
def test_a_ragged_batch_is_the_same_as_each_alone(name: str, lengths: list[int]) -> None:
    drafter, slots = DRAFTERS[name], list(range(len(lengths)))[::-1]
    parts = [(random_ids(n, seed=n), random_features(drafter, n, seed=n)) for n in lengths]
    together = new_state(drafter)
    rows = rows_of(slots, [0] * len(lengths), lengths)
    drafter.extend(together, rows, torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]))
    batch = draft(drafter, together, slots, lengths)
    for place, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        alone = new_state(drafter)
        extend(drafter, alone, slot, 0, *parts[place])
        assert_same(batch, draft(drafter, alone, [slot], [length]), slice(place, place + 1))


@each_drafter
def test_surplus_rows_are_passed_over(name: str) -> None:
    """Fixed shapes, as a CUDA graph has them: three rows for each sequence, of which one or two count."""
    drafter, lengths = DRAFTERS[name], torch.tensor([2, 1])
    ids, features = random_ids(6), random_features(drafter, 6)
    padded = Rows(
        slots=torch.tensor([3, 1]),
        past_lengths=torch.zeros(2, dtype=torch.int64),
        lengths=lengths,
        positions=torch.tensor([0, 1, 2, 0, 1, 2]),
        longest=3,
        longest_context=3,
        places=None,
    )
    state, exact = new_state(drafter), new_state(drafter)
    drafter.extend(state, padded, ids, features)
    counted = [0, 1, 3]
    drafter.extend(exact, rows_of([3, 1], [0, 0], [2, 1]), ids[counted], features[counted])
    more = random_ids(2, seed=5), random_features(drafter, 2, seed=5)
    for one in (state, exact):
        drafter.extend(one, rows_of([3, 1], [2, 1], [1, 1]), *more)
    assert_same(draft(drafter, state, [3, 1], [3, 2]), draft(drafter, exact, [3, 1], [3, 2]))


@each_drafter
def test_drafting_changes_nothing(name: str) -> None:
    drafter = DRAFTERS[name]
    state = new_state(drafter)
    extend(drafter, state, 1, 0, random_ids(5), random_features(drafter, 5))
    before = [x.clone() for x in (state.keys, state.values, state.pending)]
    first = draft(drafter, state, [1], [5])
    for old, new in zip(before, (state.keys, state.values, state.pending), strict=True):
        assert torch.equal(old, new)
    assert_same(draft(drafter, state, [1], [5]), first)


@each_drafter
@pytest.mark.parametrize("way", ["reset", "as it is"])
def test_a_slot_is_used_again(name: str, way: str) -> None:
    """What an earlier sequence left is never seen, with and without a reset."""
    drafter = DRAFTERS[name]
    used, fresh = new_state(drafter), new_state(drafter)
    extend(drafter, used, 1, 0, random_ids(9, seed=8), random_features(drafter, 9, seed=8))
    if way == "reset":
        used.reset([1])
        assert not used.keys[:, 1].any()
        assert not used.pending[1].any()
    for state in (used, fresh):
        extend(drafter, state, 1, 0, random_ids(4), random_features(drafter, 4))
    assert_same(draft(drafter, used, [1], [4]), draft(drafter, fresh, [1], [4]))


@each_drafter
def test_a_copy_goes_on_alone(name: str) -> None:
    drafter = DRAFTERS[name]
    state = new_state(drafter)
    extend(drafter, state, 0, 0, random_ids(4), random_features(drafter, 4))
    state.copy([0], [2])
    before = drafter.draft(state, rows_of([0], [4], [1]), torch.tensor([7]))
    extend(drafter, state, 0, 4, random_ids(3, seed=2), random_features(drafter, 3, seed=2))
    after = drafter.draft(state, rows_of([2], [4], [1]), torch.tensor([7]))
    assert_same(after, before)


@each_drafter
def test_context_matters(name: str) -> None:
    """Else the tests above would pass with a drafter that reads nothing."""
    drafter = DRAFTERS[name]
    lattices = []
    for seed in (1, 2):
        state = new_state(drafter)
        extend(drafter, state, 0, 0, random_ids(4), random_features(drafter, 4, seed=seed))
        lattices.append(draft(drafter, state, [0], [4]))
    assert not torch.allclose(lattices[0].log_probs, lattices[1].log_probs, atol=1e-3)
