"""Tiles fit the shared memory that the arithmetic gives them."""

from __future__ import annotations

from itertools import product

import pytest

from lossguard_kernels.tree_attention.tiles import PORTABLE_SHARED_BYTES, splits_for, tiles_for


@pytest.mark.parametrize("dim", [16, 64, 128, 256])
def test_every_tile_fits(dim: int) -> None:
    for num_rows, itemsize, room in product((1, 16, 96, 384), (2, 4), (PORTABLE_SHARED_BYTES, 227 << 10)):
        found = tiles_for(dim, num_rows, itemsize, room)
        assert found.shared_bytes(dim, itemsize) <= room
        assert 16 <= found.rows <= 64


def test_the_case_of_the_docstring() -> None:
    small, large = tiles_for(256, 96, 2), tiles_for(256, 96, 2, 227 << 10)
    assert (small.rows, small.columns, small.stages) == (32, 32, 2)
    assert small.shared_bytes(256, 2) == (16 + 64 + 2) << 10
    assert (large.rows, large.columns) == (64, 32)
    assert large.shared_bytes(256, 2) == (32 + 64 + 4) << 10


def test_splits_fill_the_device_and_are_not_too_short() -> None:
    assert splits_for(4, 1024) == 16
    assert splits_for(4, 60) == 1
    assert splits_for(128, 32768) == 2
    assert splits_for(1000, 32768) == 1
