"""The chunked rule, the single step and the convolution against the recurrence as it is written."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

from lossguard_mechanisms.targets.gated_delta import (
    chunk_length_for,
    convolve_chunk,
    delta_chunks,
    delta_step,
)
from lossguard_mechanisms.targets.mixing import DeltaInputs
from lossguard_mechanisms.targets.naive import convolve_by_token, recur_by_token

WIDE = torch.float64


def random_inputs(num_tokens: int, *, groups: int = 1, seed: int = 0, dtype: torch.dtype = WIDE) -> DeltaInputs:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=WIDE).to(dtype)

    heads = 2 * groups
    return DeltaInputs(
        query=normal(num_tokens, 2, 5),
        key=normal(num_tokens, 2, 5),
        value=normal(num_tokens, heads, 7),
        log_decay=-normal(num_tokens, heads).abs(),
        beta=normal(num_tokens, heads).sigmoid(),
    )


def batch_of(*items: DeltaInputs) -> DeltaInputs:
    return DeltaInputs(
        query=torch.stack([item.query for item in items]),
        key=torch.stack([item.key for item in items]),
        value=torch.stack([item.value for item in items]),
        log_decay=torch.stack([item.log_decay for item in items]),
        beta=torch.stack([item.beta for item in items]),
    )


def part_of(inputs: DeltaInputs, tokens: slice | int) -> DeltaInputs:
    return DeltaInputs(
        query=inputs.query[:, tokens],
        key=inputs.key[:, tokens],
        value=inputs.value[:, tokens],
        log_decay=inputs.log_decay[:, tokens],
        beta=inputs.beta[:, tokens],
    )


def random_state(inputs: DeltaInputs, *, seed: int = 7) -> Tensor:
    heads, value_dim = inputs.value.shape[-2:]
    shape = (inputs.value.shape[0], heads, inputs.key.shape[-1], value_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=WIDE)


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    scale = max(1.0, float(expected.detach().abs().max()))
    error = float((found.detach().double() - expected.detach().double()).abs().max())
    assert error <= tolerance * scale, f"off by {error:.3g} of {scale:.3g}"


@given(
    num_tokens=st.integers(1, 40),
    groups=st.integers(1, 3),
    chunk=st.sampled_from([1, 2, 5, 16, 64]),
    seed=st.integers(0, 2**31),
)
def test_chunks_equal_the_recurrence(num_tokens: int, groups: int, chunk: int, seed: int) -> None:
    items = [random_inputs(num_tokens, groups=groups, seed=seed + number) for number in range(2)]
    inputs = batch_of(*items)
    state = random_state(inputs, seed=seed)
    outputs, after = delta_chunks(inputs, state, chunk_length=chunk)
    for number, item in enumerate(items):
        expected, last = recur_by_token(item, state[number], dtype=WIDE)
        assert_close(outputs[number], expected, 1e-12)
        assert_close(after[number], last, 1e-12)


@given(num_tokens=st.integers(2, 50), data=st.data())
def test_it_may_be_cut_anywhere(num_tokens: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, num_tokens - 1))
    inputs = batch_of(random_inputs(num_tokens, groups=2))
    whole, end = delta_chunks(inputs, None)
    first, state = delta_chunks(part_of(inputs, slice(0, cut)), None)
    second, after = delta_chunks(part_of(inputs, slice(cut, None)), state)
    assert_close(torch.cat((first, second), dim=1), whole, 1e-12)
    assert_close(after, end, 1e-12)


def test_steps_equal_chunks() -> None:
    inputs = batch_of(random_inputs(9, groups=3), random_inputs(9, groups=3, seed=1))
    state = random_state(inputs)
    expected, end = delta_chunks(inputs, state)
    outputs = []
    for token in range(9):
        output, state = delta_step(part_of(inputs, token), state)
        outputs.append(output)
    assert_close(torch.stack(outputs, dim=1), expected, 1e-12)
    assert_close(state, end, 1e-12)


def test_a_step_in_place_is_the_same_step() -> None:
    inputs = part_of(batch_of(random_inputs(3, groups=3)), 1)
    state = random_state(batch_of(random_inputs(3, groups=3)))
    expected, after = delta_step(inputs, state)
    output, same = delta_step(inputs, state, out=state)
    assert same is state
    assert torch.equal(output, expected)
    assert torch.equal(state, after)


def test_the_state_given_is_left_alone() -> None:
    inputs = batch_of(random_inputs(5))
    state = random_state(inputs)
    before = state.clone()
    delta_chunks(inputs, state)
    delta_step(part_of(inputs, 0), state)
    assert torch.equal(state, before)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 200])
def test_float32_stays_near_float64(length: int) -> None:
    exact = random_inputs(length, groups=2)
    rounded = random_inputs(length, groups=2, dtype=torch.float32)
    expected, last = recur_by_token(exact, None, dtype=WIDE)
    outputs, after = delta_chunks(batch_of(rounded), None)
    assert outputs.dtype == after.dtype == torch.float32
    assert_close(outputs[0], expected, 5e-6)
    assert_close(after[0], last, 5e-6)


def test_bfloat16_inputs_are_computed_in_float32() -> None:
    exact = random_inputs(30, groups=2, dtype=torch.bfloat16)
    expected, last = recur_by_token(exact, None, dtype=WIDE)
    outputs, after = delta_chunks(batch_of(exact), None)
    assert outputs.dtype == torch.bfloat16
    assert after.dtype == torch.float32
    assert_close(after[0], last, 5e-6)
    assert_close(outputs[0], expected, 5e-3)


def test_equal_keys_without_decay_stay_finite_in_a_whole_chunk() -> None:
    """The case in which solving by powers of T breaks down: 64 equal keys, nothing forgotten."""
    plain = random_inputs(64)
    worst = DeltaInputs(
        query=plain.query,
        key=plain.key[:1].expand_as(plain.key),
        value=plain.value,
        log_decay=torch.zeros_like(plain.log_decay),
        beta=torch.ones_like(plain.beta),
    )
    expected, _ = recur_by_token(worst, None, dtype=WIDE)
    narrow = DeltaInputs(
        query=worst.query.float(),
        key=worst.key.float(),
        value=worst.value.float(),
        log_decay=worst.log_decay.float(),
        beta=worst.beta.float(),
    )
    outputs, _ = delta_chunks(batch_of(narrow), None)
    assert_close(outputs[0], expected, 5e-6)


def test_a_decay_to_nothing_neither_overflows_nor_leaks() -> None:
    plain = random_inputs(20)
    forgetful = DeltaInputs(
        query=plain.query,
        key=plain.key,
        value=plain.value,
        log_decay=torch.full_like(plain.log_decay, -800.0),
        beta=plain.beta,
    )
    outputs, after = delta_chunks(batch_of(forgetful), random_state(batch_of(forgetful)))
    expected, last = recur_by_token(forgetful, None, dtype=WIDE)
    assert_close(outputs[0], expected, 1e-12)
    assert_close(after[0], last, 1e-12)


def test_padding_changes_nothing() -> None:
    inputs = batch_of(random_inputs(11, groups=2))
    state = random_state(inputs)
    padded = DeltaInputs(
        query=torch.cat((inputs.query, torch.zeros(1, 9, 2, 5, dtype=WIDE)), 1),
        key=torch.cat((inputs.key, torch.zeros(1, 9, 2, 5, dtype=WIDE)), 1),
        value=torch.cat((inputs.value, torch.zeros(1, 9, 4, 7, dtype=WIDE)), 1),
        log_decay=torch.cat((inputs.log_decay, torch.zeros(1, 9, 4, dtype=WIDE)), 1),
        beta=torch.cat((inputs.beta, torch.zeros(1, 9, 4, dtype=WIDE)), 1),
    )
    expected, end = delta_chunks(inputs, state)
    outputs, after = delta_chunks(padded, state)
    assert_close(outputs[:, :11], expected, 1e-13)
    assert_close(after, end, 1e-13)


def test_gradients_equal_those_of_the_recurrence_of_transformers() -> None:
    leaves = batch_of(random_inputs(21, groups=1, dtype=torch.float32))
    tensors = [leaves.query, leaves.key, leaves.value, leaves.log_decay, leaves.beta]
    ours = [tensor.clone().requires_grad_() for tensor in tensors]
    theirs = [tensor.clone().requires_grad_() for tensor in tensors]
    query, key, value, log_decay, beta = ours
    inputs = DeltaInputs(query=query, key=key, value=value, log_decay=log_decay, beta=beta)
    outputs, _ = delta_chunks(inputs, None, chunk_length=8)
    expected, _ = torch_recurrent_gated_delta_rule(*theirs, use_qk_l2norm_in_kernel=True)
    assert_close(outputs, expected, 2e-6)
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(3))
    (outputs * weights).sum().backward()
    (expected * weights).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert_close(mine.grad, other.grad, 2e-5)


def test_a_chunk_is_no_longer_than_needed() -> None:
    assert [chunk_length_for(length) for length in (1, 16, 17, 33, 64, 65, 4000)] == [16, 16, 32, 64, 64, 64, 64]


@given(
    num_tokens=st.integers(1, 12),
    width=st.integers(2, 5),
    padding=st.integers(0, 4),
    data=st.data(),
)
def test_the_convolution_may_be_cut_anywhere(num_tokens: int, width: int, padding: int, data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    channels = torch.randn(num_tokens, 3, generator=generator, dtype=WIDE)
    weight = torch.randn(3, width, generator=generator, dtype=WIDE)
    expected = convolve_by_token(channels, weight, dtype=WIDE)
    cut = data.draw(st.integers(0, num_tokens))
    past = torch.zeros(1, 3, width - 1, dtype=WIDE)
    outputs = []
    for part in (channels[:cut], channels[cut:]):
        if len(part):
            noise = torch.full((padding, 3), 99.0, dtype=WIDE)
            lengths = torch.tensor([len(part)]) if padding else None
            output, past = convolve_chunk(torch.cat((part, noise))[None], weight, past, lengths)
            outputs.append(output[0, : len(part)])
    assert_close(torch.cat(outputs), expected, 1e-12)
