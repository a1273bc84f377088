"""Sizes of programs divide the state, and leave few multiprocessors idle."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from lossguard_kernels.wy_verify.launch_sizes import LaunchSizes, Work, commit_sizes, verify_sizes


@pytest.mark.parametrize("sizes_of", [verify_sizes, commit_sizes])
def test_programs_divide_the_state(sizes_of: Callable[[Work], LaunchSizes]) -> None:
    for tile, programs, key_dim, value_dim in product((16, 32, 64), (1, 48, 1536), (16, 96, 256), (16, 48, 96, 128)):
        sizes = sizes_of(Work(tile=tile, programs=programs, key_dim=key_dim, value_dim=value_dim))
        assert value_dim % sizes.block == 0
        assert key_dim % sizes.part == 0


def test_few_requests_take_narrow_programs() -> None:
    """48 value heads of 128: 192 programs of 32 columns for one request, one program a head for eight."""
    few, many = (Work(tile=16, programs=num, key_dim=128, value_dim=128) for num in (48, 8 * 48))
    assert (verify_sizes(few).block, verify_sizes(many).block) == (32, 128)
    assert verify_sizes(Work(tile=64, programs=8 * 48, key_dim=128, value_dim=128)).block == 64
