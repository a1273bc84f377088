"""Ragged batches of sequences in slots against one sequence at a time without any state."""

from __future__ import annotations

import functools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.gated_delta import delta_step
from lossguard_mechanisms.targets.mixing import DeltaInputs
from lossguard_mechanisms.targets.naive import NaiveMixing
from lossguard_mechanisms.targets.rows import rows_of
from lossguard_mechanisms.targets.stateful import StatefulMixing
from tests.mechanisms.targets.tiny import HYBRIDS, logits_of, memory_for, pair, random_ids, run_in_chunks, run_step


@functools.cache
def target_of(family: str) -> Target:
    return pair(family, dtype=torch.float64).ours


def alone(target: Target, ids: Tensor) -> Tensor:
    return logits_of(target, ids, torch.arange(len(ids)), NaiveMixing(dtype=torch.float64))


@settings(max_examples=12)
@given(seed=st.integers(0, 2**31), family=st.sampled_from(("qwen3", *HYBRIDS)))
def test_any_schedule_gives_each_sequence_its_own_logits(seed: int, family: str) -> None:
    """Sequences begin and go on in random steps beside others; slots are used in any order."""
    rng = random.Random(seed)
    target = target_of(family)
    memory = memory_for(target, num_slots=5, capacity=24)
    slots = rng.sample(range(5), 3)
    sequences = {slot: random_ids(rng.randint(1, 20), seed=rng.randrange(10**6)) for slot in slots}
    outputs: dict[int, list[Tensor]] = {slot: [] for slot in slots}
    done = dict.fromkeys(slots, 0)
    while unfinished := [slot for slot in slots if done[slot] < len(sequences[slot])]:
        chosen = rng.sample(unfinished, rng.randint(1, len(unfinished)))
        parts = {}
        for slot in chosen:
            length = rng.choice((1, rng.randint(1, len(sequences[slot]) - done[slot])))
            parts[slot] = sequences[slot][done[slot] : done[slot] + length], done[slot]
        for slot, logits in run_step(target, memory, parts).items():
            outputs[slot].append(logits)
            done[slot] += len(logits)
    for slot in slots:
        torch.testing.assert_close(torch.cat(outputs[slot]), alone(target, sequences[slot]), rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", HYBRIDS)
def test_other_slots_are_left_alone(family: str) -> None:
    target = target_of(family)
    memory = memory_for(target, num_slots=3)
    for tensor in (memory.recurrent.conv, memory.recurrent.recurrent, memory.key_values.keys):
        tensor.normal_()
    memory.recurrent.reset([1])
    before = [memory.recurrent.conv.clone(), memory.recurrent.recurrent.clone(), memory.key_values.keys.clone()]
    run_in_chunks(target, memory, 1, random_ids(9, seed=0), [4, 3, 1, 1])
    after = [memory.recurrent.conv, memory.recurrent.recurrent, memory.key_values.keys]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old[:, [0, 2]], new[:, [0, 2]])
        assert not torch.equal(old[:, 1], new[:, 1])


@pytest.mark.parametrize("slots", [[2, 3, 4], [4, 2, 3], [5, 0, 2, 4], [0, 9]])
def test_single_tokens_change_states_where_they_lie(slots: list[int]) -> None:
    """A stretch of slots, one out of order, one with gaps, and two far apart: as if each were gathered."""
    target = target_of("qwen3_5_text")
    memory = memory_for(target, num_slots=10)
    memory.recurrent.recurrent.normal_()
    (layer, *_), shape = target.config.delta_layers, target.config.delta
    assert shape is not None
    states = memory.recurrent.recurrent[memory.recurrent.place_of(layer)]
    before, count = states.clone(), len(slots)
    inputs = DeltaInputs(
        query=torch.randn(count, shape.num_key_heads, shape.key_dim, dtype=torch.float64),
        key=torch.randn(count, shape.num_key_heads, shape.key_dim, dtype=torch.float64),
        value=torch.randn(count, shape.num_value_heads, shape.value_dim, dtype=torch.float64),
        log_decay=-torch.rand(count, shape.num_value_heads, dtype=torch.float64),
        beta=torch.rand(count, shape.num_value_heads, dtype=torch.float64),
    )
    mixed = memory.recurrent.recur(layer, rows_of(slots, [3] * count, [1] * count), inputs)
    expected, after = delta_step(inputs, before[slots])
    torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(states[slots], after, rtol=0, atol=1e-12)
    others = [slot for slot in range(10) if slot not in slots]
    assert torch.equal(states[others], before[others])


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_slot_is_as_new_after_a_reset(family: str) -> None:
    target = target_of(family)
    memory = memory_for(target, num_slots=2)
    run_in_chunks(target, memory, 0, random_ids(15, seed=1), [15])
    memory.recurrent.reset([0])
    ids = random_ids(11, seed=2)
    found = run_in_chunks(target, memory, 0, ids, [5, 6])
    torch.testing.assert_close(found, alone(target, ids), rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_copy_is_the_way_back(family: str) -> None:
    """Snapshot, run a draft that is refused, restore, run what was accepted."""
    target = target_of(family)
    memory = memory_for(target, num_slots=4)
    ids, draft = random_ids(12, seed=3), random_ids(5, seed=4)
    first = run_in_chunks(target, memory, 0, ids[:7], [7])
    memory.recurrent.copy([0], [3])
    run_step(target, memory, {0: (draft, 7)})
    memory.recurrent.copy([3], [0])
    second = run_step(target, memory, {0: (ids[7:], 7)})[0]
    torch.testing.assert_close(torch.cat((first, second)), alone(target, ids), rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_wider_context_changes_nothing(family: str) -> None:
    """The bound of a graph's tier only adds keys that no row sees."""
    target = target_of(family)
    ids = random_ids(6, seed=6)
    narrow, wide = rows_of([0], [0], [6]), rows_of([0], [0], [6], longest_context=200)
    assert (narrow.longest_context, wide.longest_context) == (6, 200)
    memory = memory_for(target, num_slots=1)
    memory.key_values.keys.fill_(1e3)
    memory.key_values.values.fill_(1e3)
    mixing = StatefulMixing(wide, recurrent=memory.recurrent, key_values=memory.key_values)
    torch.testing.assert_close(logits_of(target, ids, wide.positions, mixing), alone(target, ids), rtol=0, atol=1e-10)


def test_rows_are_laid_out_sequence_after_sequence() -> None:
    rows = rows_of([4, 0, 2], [10, 0, 3], [2, 3, 1])
    assert rows.positions.tolist() == [10, 11, 0, 1, 2, 3]
    assert rows.last_rows.tolist() == [1, 4, 5]
    padded = rows.pad(torch.arange(1, 7))
    assert padded.tolist() == [[1, 2, 0], [3, 4, 5], [6, 0, 0]]
    assert rows.unpad(padded).tolist() == [1, 2, 3, 4, 5, 6]


def test_equal_lengths_need_no_padding() -> None:
    rows = rows_of([1, 0], [0, 5], [3, 3])
    assert rows.places is None
    assert rows.ragged_lengths is None
    x = torch.arange(12).view(6, 2)
    assert torch.equal(rows.unpad(rows.pad(x)), x)


@pytest.mark.parametrize(
    ("slots", "past", "lengths"),
    [([0, 0], [0, 0], [1, 1]), ([0], [0], [0]), ([0], [-1], [2]), ([], [], []), ([0, 1], [0], [1, 1])],
)
def test_rows_that_cannot_be_are_refused(slots: list[int], past: list[int], lengths: list[int]) -> None:
    with pytest.raises(AssertionError):
        rows_of(slots, past, lengths)


def test_a_context_longer_than_the_slots_is_refused() -> None:
    target = target_of("qwen3")
    memory = memory_for(target, num_slots=1, capacity=4)
    with pytest.raises(AssertionError, match="longer than the slots"):
        run_in_chunks(target, memory, 0, random_ids(5, seed=0), [5])
