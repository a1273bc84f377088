"""Where every weight of a W12 matrix lies: the format itself, in numbers. Standard library only.

A bf16 weight is sign, 8-bit exponent e, 7-bit mantissa m. With the base b of its row, its code is ``c = e - b``. A code
from 1 to 15 gives the 11-bit record ``c << 7 | m``; zero has the record 0. The 8-bit plane HI holds
``sign << 7 | record >> 4``, which is a number in E4M3; the 4-bit plane LO holds ``record & 15``. Code 15 with a
mantissa from 112 on would be the NaN byte of E4M3, so such a weight escapes, as does any outside the window.

Both planes are cut into tiles of 16 rows x 128 columns. Tiles of one band of 16 rows follow each other; if the number
of columns is no multiple of 128, the last tile of each band is narrower. A tile of HI is 16 rows of ``width`` bytes. A
row of a tile of LO is ``width / 2`` bytes: byte ``2 p + h`` holds columns ``h * width / 2 + 2 p`` (low nibble) and
``h * width / 2 + 2 p + 1`` (high nibble), so that one 32-bit word serves one word of either half of HI by shifts alone.
"""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 1
"""Raised whenever a reader of an older version could not read what is written."""

TILE_ROWS = 16
TILE_COLUMNS = 128
COLUMN_GRAIN = 16
"""Columns are padded to a multiple of this, rows to a multiple of ``TILE_ROWS``, with zeros."""

FIRST_RECORD = 0x080
END_RECORD = 0x7F0
"""In-band records are in ``[FIRST_RECORD, END_RECORD)``."""

NUM_CODES = 15
MAX_BASE = 254 - NUM_CODES
"""Bases are from 0 to this, so that Inf and NaN (exponent 255) always escape: a kernel that decodes without the base
then never meets one as an ordinary number."""

PLACE_ROWS = 128
COLUMN_BITS = 24
MAX_COLUMNS = 1 << COLUMN_BITS
"""The place of an escape is ``(row % PLACE_ROWS) << COLUMN_BITS | column``, a non-negative int32."""

ESCAPE_BYTES = 6
PARTS = ("hi", "lo", "escape_start", "escape_place", "escape_bits", "base")
"""Names of the arrays of one matrix, in the order in which they are hashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The planes of a matrix of ``rows`` x ``columns`` weights."""

    rows: int
    columns: int

    @property
    def padded_rows(self) -> int:
        """Rows with padding."""
        return _round_up(self.rows, TILE_ROWS)

    @property
    def padded_columns(self) -> int:
        """Columns with padding."""
        return _round_up(self.columns, COLUMN_GRAIN)

    @property
    def num_bands(self) -> int:
        """Bands of 16 rows."""
        return self.padded_rows // TILE_ROWS

    @property
    def num_weights(self) -> int:
        """Weights, without padding."""
        return self.rows * self.columns

    def num_bytes(self, *, num_bases: int, num_escapes: int) -> int:
        """Bytes of all parts."""
        planes = self.padded_rows * self.padded_columns * 3 // 2
        return planes + num_bases + 4 * (self.num_bands + 1) + ESCAPE_BYTES * num_escapes

    def hi_index(self, row: int, column: int) -> int:
        """Index of a weight's byte in HI."""
        return self._tile_row(row, column)[0] + column % TILE_COLUMNS

    def lo_index(self, row: int, column: int) -> tuple[int, int]:
        """Index of a weight's byte in LO, and the shift of its nibble (0 or 4)."""
        start, width = self._tile_row(row, column)
        half, within = divmod(column % TILE_COLUMNS, width // 2)
        return start // 2 + within // 2 * 2 + half, within % 2 * 4

    def _tile_row(self, row: int, column: int) -> tuple[int, int]:
        """Index in HI where the weight's row of its tile starts, and the width of that tile."""
        band, row_in_tile = divmod(row, TILE_ROWS)
        tile = column // TILE_COLUMNS
        width = min(TILE_COLUMNS, self.padded_columns - TILE_COLUMNS * tile)
        start = TILE_ROWS * (band * self.padded_columns + TILE_COLUMNS * tile)
        return start + row_in_tile * width, width


def _round_up(value: int, grain: int) -> int:
    return -(-value // grain) * grain
