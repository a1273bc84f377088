"""Philox against its published vectors; uniform numbers that depend on key and position only."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lossguard_mechanisms.engine.counter_random import philox, request_key, uniforms

KNOWN = [  # counter, key, output: the known answers of Random123 for philox4x32-10
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    first, second, third, fourth = (torch.tensor([word]) for word in counter)
    low, high = (torch.tensor([word]) for word in key)
    words = philox((first, second, third, fourth), (low, high))
    assert tuple(int(word) for word in words) == expected


def test_uniforms_are_uniform_along_positions_and_along_keys() -> None:
    steps = torch.arange(20_000)
    along_positions = uniforms(torch.full_like(steps, 17), steps)
    along_keys = uniforms(steps, torch.full_like(steps, 17))
    for values in (along_positions, along_keys):
        assert stats.kstest(values.numpy(), "uniform").pvalue > 1e-3
        assert abs(torch.corrcoef(torch.stack((values[:-1], values[1:])))[0, 1]) < 0.03
    assert abs(torch.corrcoef(torch.stack((along_positions, along_keys)))[0, 1]) < 0.03


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**40)), min_size=1, max_size=8))
def test_uniforms_do_not_depend_on_neighbours(pairs: list[tuple[int, int]]) -> None:
    keys, positions = (torch.tensor(column) for column in zip(*pairs, strict=True))
    together = uniforms(keys, positions)
    alone = torch.cat([uniforms(keys[at : at + 1], positions[at : at + 1]) for at in range(len(pairs))])
    assert torch.equal(together, alone)
    assert bool(((together > 0) & (together < 1)).all())


def test_request_key_separates_requests_that_share_a_seed() -> None:
    keys = {request_key(17, name, repeat) for name in ("a", "b") for repeat in (0, 1)} | {request_key(18, "a", 0)}
    assert len(keys) == 5
    assert all(0 <= key < 2**63 for key in keys)


@pytest.mark.slow
def test_compiled_numbers_are_the_same_bits() -> None:
    compiled = torch.compile(uniforms, dynamic=True, fullgraph=True)
    for count in (1, 8, 64):
        keys = torch.tensor([request_key(17, f"r{at}", 0) for at in range(count)])
        positions = torch.arange(count) * 1_000_003
        assert torch.equal(compiled(keys, positions), uniforms(keys, positions))
