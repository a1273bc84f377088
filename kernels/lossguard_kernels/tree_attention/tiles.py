"""Sizes of a program by the shared memory that it may have, and the number of parts by how many run at once.

A program holds a tile of queries and, in every stage, a tile of keys and one of values, all of ``itemsize`` bytes:

    bytes = itemsize * dim * (rows + 2 * stages * columns) + itemsize * rows * columns

(the last term: weights on their way into the second product, where no warp group takes them from registers). Heads of
256 channels in bfloat16 with 64 rows, 32 columns and two stages take 32 + 64 + 4 KiB, more than the 99 KiB of the
smaller devices, so 32 rows are taken there (16 + 64 + 2). Where a block may have 227 KiB, 128 rows share their keys and
values, and loads run two or three tiles ahead: with two stages a load is asked for just before it is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch

PORTABLE_SHARED_BYTES: Final = 99 << 10
"""Of a block, on the devices with least among those with tensor cores for bf16 and asynchronous copies."""

LARGE_SHARED_BYTES: Final = 227 << 10
"""Of a block, on data-center devices since Hopper."""

_LEAST_ROWS, _MOST_ROWS = 16, 64
_COLUMNS_AND_STAGES = ((64, 2), (32, 2), (16, 2), (16, 1))
_START, _PARTING = 2, 2  # in tiles: a program's begin, and its part of the outputs
_MERGE, _MERGED_PART = 2, 0.15  # a second launch, and what each part adds to it
_BESIDE = 0.6  # what a second program on a multiprocessor adds to the time of the first
_MOST_PARTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a launch may have: of shared memory, a block; and multiprocessors."""

    shared_bytes: int = PORTABLE_SHARED_BYTES
    multiprocessors: int = 132


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


@lru_cache
def device_of(device: torch.device) -> Device:
    """What ``device`` offers; a CPU, on which the interpreter runs, is taken for one with little shared memory."""
    if device.type != "cuda":
        return Device()
    found = torch.cuda.get_device_properties(device)
    shared_bytes = int(getattr(found, "shared_memory_per_block_optin", PORTABLE_SHARED_BYTES))  # not all say it
    return Device(shared_bytes=shared_bytes, multiprocessors=found.multi_processor_count)


def tiles_for(dim: int, num_rows: int, itemsize: int, shared_bytes: int = PORTABLE_SHARED_BYTES) -> Tiles:
    """A tile that fits, as large as pays: ``num_rows`` are nodes times queries per key head, ``dim`` a power of two.

    Four-byte types take what the smallest devices have: their products need more beside the operands.
    """
    if shared_bytes >= LARGE_SHARED_BYTES and itemsize == 2:
        return _large(dim, num_rows)
    shared_bytes = min(shared_bytes, PORTABLE_SHARED_BYTES)
    rows = min(_MOST_ROWS, _padded(num_rows))
    while rows >= _LEAST_ROWS:
        for columns, stages in _COLUMNS_AND_STAGES[1 if dim > 128 else 0 :]:
            found = Tiles(rows=rows, columns=columns, stages=stages, warps=4)
            least = columns >= 32 or rows == _LEAST_ROWS
            if least and found.shared_bytes(dim, itemsize) <= shared_bytes:
                return found
        rows //= 2
    raise AssertionError("a tile of 16 rows and 16 columns fits every device")


def _large(dim: int, num_rows: int) -> Tiles:
    """Eight warps with 128 rows only: a warp group takes 64 rows, and less would be read past their end."""
    if num_rows > 64 and dim > 128:
        return Tiles(rows=128, columns=32, stages=4, warps=8)
    return Tiles(rows=min(64, _padded(num_rows)), columns=32 if dim > 128 else 64, stages=3, warps=4)


def _padded(num_rows: int) -> int:
    return max(_LEAST_ROWS, 1 << (num_rows - 1).bit_length())


@lru_cache(maxsize=4096)
def splits_for(programs: int, num_tiles: int, multiprocessors: int, *, is_alone: bool) -> int:
    """Parts of ``num_tiles`` tiles, so that ``programs`` times parts are done soonest.

    ``is_alone``: a program fills a multiprocessor. Otherwise a second one beside it hides some of what both wait for.
    """

    def tiles_of(parts: int) -> float:
        waves, each = -(-programs * parts // multiprocessors), -(-num_tiles // parts) + _START
        turns = waves if is_alone else waves % 2 + (1 + _BESIDE) * (waves // 2)
        return turns * each if parts == 1 else turns * (each + _PARTING) + _MERGE + _MERGED_PART * parts

    return min(range(1, max(1, min(_MOST_PARTS, num_tiles)) + 1), key=tiles_of)
