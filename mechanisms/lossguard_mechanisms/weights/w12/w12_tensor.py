"""One encoded matrix as torch tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from lossguard_mechanisms.weights.w12.failures import not_understood
from lossguard_mechanisms.weights.w12.layout import (
    COLUMN_BITS,
    MAX_COLUMNS,
    PARTS,
    TILE_COLUMNS,
    TILE_ROWS,
    Layout,
)

PART_DTYPES = {
    "hi": torch.uint8,
    "lo": torch.uint8,
    "escape_start": torch.int32,
    "escape_place": torch.int32,
    "escape_bits": torch.int16,
    "base": torch.uint8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class W12Tensor:
    """The parts of a matrix; leading dimensions of ``shape`` beyond two are flattened into its rows.

    ``hi`` uint8 [bands, 16 * padded columns], ``lo`` uint8 [bands, 8 * padded columns], ``base`` uint8 [1] or
    [padded rows], ``escape_start`` int32 [bands + 1], ``escape_place`` int32 [escapes], ``escape_bits`` int16
    [escapes]: the verbatim bf16 patterns, sorted by row and column. What each means is in ``layout``.
    """

    shape: tuple[int, ...]
    hi: Tensor
    lo: Tensor
    escape_start: Tensor
    escape_place: Tensor
    escape_bits: Tensor
    base: Tensor

    @property
    def layout(self) -> Layout:
        """Where weights lie."""
        return matrix_layout(self.shape)

    @property
    def num_escapes(self) -> int:
        """Weights that are kept verbatim beside the planes."""
        return self.escape_bits.numel()

    @property
    def num_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.numel() * part.element_size() for part in self.parts().values())

    @property
    def bits_per_weight(self) -> float:
        """Bits of all parts for each weight, padding not counted as weights."""
        return 8 * self.num_bytes / self.layout.num_weights

    def parts(self) -> dict[str, Tensor]:
        """The arrays by name, in the order of ``PARTS``."""
        return {name: getattr(self, name) for name in PARTS}

    def to(self, device: torch.device | str) -> Self:
        """The same on another device."""
        return type(self)(shape=self.shape, **{name: part.to(device) for name, part in self.parts().items()})

    def require_consistent(self, source: Path) -> Self:
        """Check types, sizes and places of all parts. Raises IntegrityError LG1209 naming ``source``."""
        problem = _problem(self)
        if problem is not None:
            raise not_understood(source, problem)
        return self


def matrix_layout(shape: tuple[int, ...]) -> Layout:
    """The layout of a tensor whose last dimension is columns and whose others are rows."""
    return Layout(rows=math.prod(shape[:-1]), columns=shape[-1])


def hi_tiles(coded: W12Tensor) -> tuple[Tensor, Tensor]:
    """HI without a copy, as uint8 tiles: [bands, full tiles, 16, 128] and the narrower last ones [bands, 16, width]."""
    layout = coded.layout
    num_tiles, width = divmod(layout.padded_columns, TILE_COLUMNS)
    split = TILE_ROWS * TILE_COLUMNS * num_tiles
    full = coded.hi[:, :split].unflatten(1, (num_tiles, TILE_ROWS, TILE_COLUMNS))
    return full, coded.hi[:, split:].unflatten(1, (TILE_ROWS, width))


def escape_positions(coded: W12Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of every escape, int64 [escapes] each."""
    counts = coded.escape_start.diff().to(torch.int64)
    band = torch.arange(coded.layout.num_bands, device=counts.device).repeat_interleave(counts)
    place = coded.escape_place.to(torch.int64)
    return band * TILE_ROWS + (place >> COLUMN_BITS) % TILE_ROWS, place % MAX_COLUMNS


def _problem(coded: W12Tensor) -> str | None:
    if len(coded.shape) < 2 or 0 in coded.shape:
        return f"a tensor of shape {list(coded.shape)} is no matrix"
    layout, escapes = coded.layout, (coded.num_escapes,)
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "hi": ((layout.num_bands, TILE_ROWS * layout.padded_columns),),
        "lo": ((layout.num_bands, TILE_ROWS * layout.padded_columns // 2),),
        "escape_start": ((layout.num_bands + 1,),),
        "escape_place": (escapes,),
        "escape_bits": (escapes,),
        "base": ((1,), (layout.padded_rows,)),
    }
    for name, part in coded.parts().items():
        if part.dtype != PART_DTYPES[name] or tuple(part.shape) not in shapes[name]:
            return f"{name} is {part.dtype} {list(part.shape)}, expected {PART_DTYPES[name]} {shapes[name]}"
    return _problem_of_escapes(coded)


def _problem_of_escapes(coded: W12Tensor) -> str | None:
    start = coded.escape_start
    if int(start[0]) != 0 or int(start[-1]) != coded.num_escapes or bool((start[1:] < start[:-1]).any()):
        return "escape_start does not count up from 0 to the number of escapes"
    row, column = escape_positions(coded)
    if bool(((coded.escape_place < 0) | (row >= coded.layout.rows) | (column >= coded.layout.columns)).any()):
        return "an escape lies outside the matrix"
    return None


assert tuple(field.name for field in fields(W12Tensor))[1:] == PARTS, "parts and fields must agree"
