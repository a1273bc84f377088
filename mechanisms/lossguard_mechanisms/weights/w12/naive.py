"""The format written out weight by weight, in plain Python: what the fast codec is tested against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lossguard_mechanisms.weights.w12.layout import (
    COLUMN_BITS,
    END_RECORD,
    FIRST_RECORD,
    MAX_COLUMNS,
    PLACE_ROWS,
    TILE_ROWS,
    Layout,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NaiveW12:
    """The parts of one matrix as plain values; ``base`` has one entry, or one per row."""

    layout: Layout
    hi: bytes
    lo: bytes
    escape_start: tuple[int, ...]
    escape_place: tuple[int, ...]
    escape_bits: tuple[int, ...]
    base: tuple[int, ...]


def encode(weights: Sequence[Sequence[int]], base: Sequence[int]) -> NaiveW12:
    """Encode rows of bf16 bit patterns (0 to 65,535)."""
    layout = Layout(rows=len(weights), columns=len(weights[0]))
    hi = bytearray(layout.padded_rows * layout.padded_columns)
    lo = bytearray(len(hi) // 2)
    start, places, verbatim = [0] * (layout.num_bands + 1), [], []
    for row, patterns in enumerate(weights):
        for column, pattern in enumerate(patterns):
            record = record_of(pattern, base[row % len(base)])
            if record is None:
                places.append(row % PLACE_ROWS << COLUMN_BITS | column)
                verbatim.append(pattern)
                continue
            hi[layout.hi_index(row, column)] = pattern >> 8 & 0x80 | record >> 4
            index, shift = layout.lo_index(row, column)
            lo[index] |= (record & 15) << shift
        start[row // TILE_ROWS + 1] = len(places)
    return NaiveW12(
        layout=layout,
        hi=bytes(hi),
        lo=bytes(lo),
        escape_start=tuple(start),
        escape_place=tuple(places),
        escape_bits=tuple(verbatim),
        base=tuple(base),
    )


def record_of(pattern: int, base: int) -> int | None:
    """The 11-bit record of a bf16 pattern without its sign, or None if it escapes."""
    magnitude = pattern & 0x7FFF
    record = magnitude - (base << 7)
    if FIRST_RECORD <= record < END_RECORD:
        return record
    return 0 if magnitude == 0 else None


def decode(coded: NaiveW12) -> list[list[int]]:
    """The bit patterns that were encoded."""
    rows = range(coded.layout.rows)
    weights = [[_in_band(coded, row, column) for column in range(coded.layout.columns)] for row in rows]
    for band in range(coded.layout.num_bands):
        for number in range(coded.escape_start[band], coded.escape_start[band + 1]):
            place = coded.escape_place[number]
            row = band * TILE_ROWS + (place >> COLUMN_BITS) % TILE_ROWS
            weights[row][place % MAX_COLUMNS] = coded.escape_bits[number]
    return weights


def _in_band(coded: NaiveW12, row: int, column: int) -> int:
    byte = coded.hi[coded.layout.hi_index(row, column)]
    index, shift = coded.layout.lo_index(row, column)
    record = (byte & 0x7F) << 4 | coded.lo[index] >> shift & 15
    magnitude = record + (coded.base[row % len(coded.base)] << 7) if record else 0
    return (byte & 0x80) << 8 | magnitude
