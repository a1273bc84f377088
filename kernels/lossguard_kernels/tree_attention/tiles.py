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
_BESIDE_BYTES = 1 << 10  # that every program takes beside its own
_START, _PARTING, _MERGE = 2, 2, 2  # in tiles: a program's begin, its part of the outputs, and the merge of all
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
        return self._operand_bytes(dim, itemsize) + itemsize * self.rows * self.columns

    def at_once(self, dim: int, itemsize: int, device: Device) -> int:
        """Programs that the device runs at the same time: by shared memory, and by 64 Ki registers of 4 bytes."""
        by_memory = (device.shared_bytes + _BESIDE_BYTES) // (self._operand_bytes(dim, itemsize) + _BESIDE_BYTES)
        by_registers = (16 if self.rows < 64 else 8) // self.warps  # 128 or 255 a thread
        return device.multiprocessors * max(1, min(by_memory, by_registers))

    def _operand_bytes(self, dim: int, itemsize: int) -> int:
        return itemsize * dim * (self.rows + 2 * self.stages * self.columns)


@lru_cache
def device_of(device: torch.device) -> Device:
    """What ``device`` offers; a CPU, on which the interpreter runs, is taken for the smallest one."""
    if device.type != "cuda":
        return Device()
    found = torch.cuda.get_device_properties(device)
    shared_bytes = int(getattr(found, "shared_memory_per_block_optin", PORTABLE_SHARED_BYTES))  # not all say it
    return Device(shared_bytes=shared_bytes, multiprocessors=found.multi_processor_count)


def tiles_for(dim: int, num_rows: int, itemsize: int, shared_bytes: int = PORTABLE_SHARED_BYTES) -> Tiles:
    """The largest tile that fits: ``num_rows`` are nodes times queries per key head, ``dim`` a power of two."""
    if shared_bytes >= LARGE_SHARED_BYTES and itemsize == 2:
        return _large(dim, num_rows)
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
    columns = 32 if dim > 128 else 64
    if num_rows > 64:
        return Tiles(rows=128, columns=columns, stages=4, warps=8)
    return Tiles(rows=_padded(num_rows), columns=columns, stages=3, warps=4)


def _padded(num_rows: int) -> int:
    return max(_LEAST_ROWS, 1 << (num_rows - 1).bit_length())


@lru_cache(maxsize=4096)
def splits_for(programs: int, num_tiles: int, at_once: int) -> int:
    """Parts of ``num_tiles`` tiles, so that whole waves of ``programs`` times parts are done soonest."""

    def tiles_of(parts: int) -> int:
        waves, each = -(-programs * parts // at_once), -(-num_tiles // parts) + _START
        return waves * each if parts == 1 else waves * (each + _PARTING) + _MERGE

    return min(range(1, max(1, min(_MOST_PARTS, num_tiles)) + 1), key=tiles_of)
