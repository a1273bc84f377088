"""Sizes of a program by the shared memory that it may have.

A program holds a tile of queries and, in every stage, a tile of keys and one of values, all of ``itemsize`` bytes:

    bytes = itemsize * dim * (rows + 2 * stages * columns) + itemsize * rows * columns

(the last term: weights on their way into the second product). Heads of 256 channels in bfloat16 with 64 rows, 32
columns and two stages take 32 + 64 + 4 KiB, more than the 99 KiB of the smaller devices, so 32 rows are taken there
(16 + 64 + 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PORTABLE_SHARED_BYTES: Final = 99 << 10
"""Of a block, on the devices with least among those with tensor cores for bf16 and asynchronous copies."""

_LEAST_ROWS, _MOST_ROWS = 16, 64
_COLUMNS_AND_STAGES = ((64, 2), (32, 2), (16, 2), (16, 1))
_ENOUGH_PROGRAMS = 264  # two for each multiprocessor of the largest devices
_LEAST_SPLIT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """``rows`` of queries and ``columns`` of keys a program, loaded ``stages`` ahead, by ``warps`` warps."""

    rows: int
    columns: int
    stages: int
    warps: int

    def shared_bytes(self, dim: int, itemsize: int) -> int:
        """The arithmetic of this module, for heads padded to ``dim`` channels."""
        return itemsize * (dim * (self.rows + 2 * self.stages * self.columns) + self.rows * self.columns)


def tiles_for(dim: int, num_rows: int, itemsize: int, shared_bytes: int = PORTABLE_SHARED_BYTES) -> Tiles:
    """The largest tile that fits: ``num_rows`` are nodes times queries per key head, ``dim`` a power of two."""
    rows = min(_MOST_ROWS, max(_LEAST_ROWS, 1 << (num_rows - 1).bit_length()))
    while rows >= _LEAST_ROWS:
        for columns, stages in _COLUMNS_AND_STAGES[1 if dim > 128 else 0 :]:
            found = Tiles(rows=rows, columns=columns, stages=stages, warps=4)
            least = columns >= 32 or rows == _LEAST_ROWS
            if least and found.shared_bytes(dim, itemsize) <= shared_bytes:
                return found
        rows //= 2
    raise AssertionError("a tile of 16 rows and 16 columns fits every device")


def splits_for(programs: int, most_positions: int) -> int:
    """Parts of the committed positions: as many as the device takes at once, none shorter than 64 positions."""
    return max(1, min(_ENOUGH_PROGRAMS // programs, -(-most_positions // _LEAST_SPLIT)))
