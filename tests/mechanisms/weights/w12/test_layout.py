"""Every weight has one byte in HI and one nibble in LO, and no two share one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard_mechanisms.weights.w12.layout import MAX_BASE, NUM_CODES, TILE_COLUMNS, TILE_ROWS, Layout

SIZES = st.integers(min_value=1, max_value=300)


@given(rows=st.integers(min_value=1, max_value=40), columns=SIZES)
def test_indices_are_a_bijection(rows: int, columns: int) -> None:
    layout = Layout(rows=rows, columns=columns)
    places = [(row, column) for row in range(layout.padded_rows) for column in range(layout.padded_columns)]
    assert sorted(layout.hi_index(*place) for place in places) == list(range(len(places)))
    nibbles = [layout.lo_index(*place) for place in places]
    assert sorted(2 * byte + shift // 4 for byte, shift in nibbles) == list(range(len(places)))
    assert {shift for _, shift in nibbles} == {0, 4}


@given(rows=SIZES, columns=SIZES)
def test_padding_is_the_least_that_fits(rows: int, columns: int) -> None:
    layout = Layout(rows=rows, columns=columns)
    assert layout.padded_rows % 16 == layout.padded_columns % 16 == 0
    assert 0 <= layout.padded_rows - rows < 16
    assert 0 <= layout.padded_columns - columns < 16


def test_a_tile_is_contiguous_in_both_planes() -> None:
    layout = Layout(rows=32, columns=320)
    for first_column, width in ((0, 128), (128, 128), (256, 64)):
        tile = [(row, first_column + column) for row in range(16, 32) for column in range(width)]
        hi = [layout.hi_index(*place) for place in tile]
        assert hi == list(range(hi[0], hi[0] + TILE_ROWS * width)), "row by row"
        lo = sorted({layout.lo_index(*place)[0] for place in tile})
        assert lo == list(range(hi[0] // 2, hi[0] // 2 + TILE_ROWS * width // 2))


def test_one_word_of_lo_serves_one_word_of_either_half_by_shifts() -> None:
    """What the order of nibbles is for: bits 0, 4, 16, 20 belong to one half, 8, 12, 24, 28 to the other."""
    layout = Layout(rows=16, columns=TILE_COLUMNS)
    for word in range(16):
        for half, expected in ((0, [0, 4, 16, 20]), (1, [8, 12, 24, 28])):
            places = [layout.lo_index(0, 64 * half + 4 * word + byte) for byte in range(4)]
            assert [byte // 4 for byte, _ in places] == [word] * 4
            assert [byte % 4 * 8 + shift for byte, shift in places] == expected


@pytest.mark.parametrize(("rows", "columns"), [(4096, 4096), (5120, 17408), (576, 576)])
def test_planes_alone_take_twelve_bits(rows: int, columns: int) -> None:
    layout = Layout(rows=rows, columns=columns)
    rest = 1 + 4 * (rows // 16 + 1)
    assert 8 * (layout.num_bytes(num_bases=1, num_escapes=0) - rest) == 12 * layout.num_weights
    assert (
        layout.num_bytes(num_bases=rows, num_escapes=7) - layout.num_bytes(num_bases=1, num_escapes=0) == rows - 1 + 42
    )


def test_no_window_reaches_inf_and_nan() -> None:
    assert MAX_BASE + NUM_CODES == 254
