"""Which requests share a batch, and how prompts are padded."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lossguard.engines.base import ForcedPrefix
from lossguard.engines.transformers_batches import batch_seed, forced_batches, pad_prompts, plan_batches
from lossguard.engines.transformers_options import TransformersOptions
from lossguard.records import Request, SamplingParams


def make_request(name: str, length: int, **sampling: int) -> Request:
    params = SamplingParams(**{"max_tokens": 8, **sampling})  # type: ignore[arg-type]
    return Request(id=name, prompt_ids=tuple(range(length)), sampling=params, set="s", cluster=name)


SHAPES = st.lists(st.tuples(st.integers(1, 9), st.integers(4, 6), st.integers(0, 3)), min_size=1, max_size=30)


@given(shapes=SHAPES, size=st.integers(1, 7), order=st.sampled_from(["request", "length"]))
def test_every_request_is_in_one_batch_with_its_equals(
    shapes: list[tuple[int, int, int]], size: int, order: str
) -> None:
    requests = [
        make_request(str(index), length, max_tokens=max_tokens, seed=seed)
        for index, (length, max_tokens, seed) in enumerate(shapes)
    ]
    batches = plan_batches(requests, TransformersOptions(batch_size=size, order=order))
    assert sorted(request.id for batch in batches for request in batch) == sorted(request.id for request in requests)
    for batch in batches:
        assert 1 <= len(batch) <= size
        assert len({request.sampling.max_tokens for request in batch}) == 1
        keys = [len(request.prompt_ids) if order == "length" else int(request.id) for request in batch]
        assert keys == sorted(keys)


def test_request_order_fills_batches_in_order() -> None:
    requests = [make_request(str(index), 9 - index) for index in range(5)]
    batches = plan_batches(requests, TransformersOptions(batch_size=2))
    assert [[request.id for request in batch] for batch in batches] == [["0", "1"], ["2", "3"], ["4"]]


def test_forced_batches_ignore_lengths_but_not_constraints() -> None:
    requests = [make_request("a", 3), make_request("b", 3, max_tokens=5), make_request("c", 3, min_tokens=2)]
    prefixes = [ForcedPrefix(request=request, served_ids=(1,), num_positions=1) for request in requests]
    assert forced_batches(prefixes) == [[0, 1], [2]]


@pytest.mark.parametrize(("multiple", "length"), [(1, 5), (4, 8), (5, 5)])
def test_prompts_are_padded_on_the_left(multiple: int, length: int) -> None:
    padded = pad_prompts([(7, 8), (1, 2, 3, 4, 5)], pad_id=9, multiple=multiple, device="cpu")
    assert padded.prompt_length == length
    assert padded.input_ids[0].tolist() == [9] * (length - 2) + [7, 8]
    assert padded.attention_mask.sum(dim=1).tolist() == [2, 5]
    assert padded.attention_mask.dtype == torch.int64


def test_a_batch_seed_depends_on_seeds_and_requests() -> None:
    one, other = make_request("a", 3, seed=1), make_request("b", 3, seed=1)
    assert batch_seed([one]) == batch_seed([one])
    assert batch_seed([one]) != batch_seed([other])
    assert batch_seed([one]) != batch_seed([make_request("a", 3, seed=2)])
    assert batch_seed([make_request("a", 3)]) != batch_seed([make_request("a", 3)])
