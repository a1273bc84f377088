"""Tiles fit the shared memory that the arithmetic gives them, and parts fill the device."""

from __future__ import annotations

from itertools import product

import pytest

from lossguard_kernels.tree_attention.tiles import (
    LARGE_SHARED_BYTES,
    PORTABLE_SHARED_BYTES,
    splits_for,
    tiles_for,
)


@pytest.mark.parametrize("dim", [16, 64, 128, 256])
def test_every_tile_fits(dim: int) -> None:
    rooms = (PORTABLE_SHARED_BYTES, LARGE_SHARED_BYTES)
    for num_rows, itemsize, room in product((1, 16, 64, 96, 384), (2, 4), rooms):
        found = tiles_for(dim, num_rows, itemsize, room)
        assert found.shared_bytes(dim, itemsize) <= room
        assert 16 <= found.rows <= (128 if room == LARGE_SHARED_BYTES else 64)
        assert found.warps == 4 or found.rows >= 128  # 16 rows a warp, or products read past their operands


def test_the_case_of_the_docstring() -> None:
    small, large = tiles_for(256, 96, 2), tiles_for(256, 96, 2, LARGE_SHARED_BYTES)
    assert (small.rows, small.columns, small.stages) == (32, 32, 2)
    assert small.shared_bytes(256, 2) == (16 + 64 + 2) << 10
    assert (large.rows, large.columns, large.stages) == (128, 32, 4)
    assert large.shared_bytes(256, 2) == (64 + 128 + 8) << 10


def test_four_byte_types_take_small_tiles_everywhere() -> None:
    assert tiles_for(256, 96, 4, LARGE_SHARED_BYTES) == tiles_for(256, 96, 4)


def test_parts_fill_the_device_in_whole_waves() -> None:
    assert splits_for(4, 257, 132, is_alone=True) == 33
    assert splits_for(96, 258, 132, is_alone=True) == 4  # 2.9 waves; one part would be 0.7 of a wave
    assert splits_for(128, 257, 132, is_alone=True) == 1
    assert splits_for(1056, 512, 132, is_alone=True) == 1


def test_parts_are_those_that_were_fastest() -> None:
    """Heads of 128 channels on an H200, two programs a multiprocessor (docs/tree-kernels.md)."""
    assert splits_for(32, 129, 132, is_alone=False) == 8  # 36 us, with 4 parts 46
    assert splits_for(64, 17, 132, is_alone=False) == 2  # 22 us, with 4 parts 30
    assert splits_for(256, 17, 132, is_alone=False) == 1  # 28 us, with 2 parts 54


def test_parts_are_no_more_than_tiles() -> None:
    assert splits_for(4, 1, 132, is_alone=False) == 1
    assert splits_for(4, 12, 132, is_alone=True) <= 12
