"""Moving blocks of rows into the tiles of both planes, and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard_mechanisms.weights.w12.layout import TILE_COLUMNS, TILE_ROWS, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """Neighbouring tiles of one width: ``num_tiles`` of ``width`` columns from ``first_column`` on."""

    first_column: int
    num_tiles: int
    width: int

    @property
    def columns(self) -> slice:
        """Columns of the padded matrix."""
        return slice(self.first_column, self.first_column + self.num_tiles * self.width)

    def of_plane(self, plane: Tensor, unit: int) -> Tensor:
        """This strip of a plane [bands, 16 * padded columns / unit] as tiles [bands, 16, tiles, width / unit]."""
        start = TILE_ROWS * self.first_column // unit
        size = TILE_ROWS * self.num_tiles * self.width // unit
        shape = (plane.shape[0], self.num_tiles, TILE_ROWS, self.width // unit)
        return plane[:, start : start + size].view(shape).transpose(1, 2)

    def of_rows(self, rows: Tensor, unit: int) -> Tensor:
        """This strip of rows [16 * bands, padded columns / unit] as [bands, 16, tiles, width / unit]."""
        columns = slice(self.columns.start // unit, self.columns.stop // unit)
        return rows[:, columns].view(-1, TILE_ROWS, self.num_tiles, self.width // unit)


def strips_of(layout: Layout) -> tuple[Strip, ...]:
    """The full tiles of a layout, then its narrower ones, whichever exist."""
    num_full, rest = divmod(layout.padded_columns, TILE_COLUMNS)
    strips = [Strip(first_column=0, num_tiles=num_full, width=TILE_COLUMNS)] if num_full else []
    if rest:
        strips.append(Strip(first_column=num_full * TILE_COLUMNS, num_tiles=1, width=rest))
    return tuple(strips)


def scatter_hi(plane: Tensor, values: Tensor, strip: Strip) -> None:
    """Write bytes, int16 [16 * bands, padded columns], into HI [bands, 16 * padded columns]."""
    strip.of_plane(plane, 1).copy_(strip.of_rows(values, 1))


def gather_hi(values: Tensor, plane: Tensor, strip: Strip) -> None:
    """Read HI into int16 [16 * bands, padded columns]; bit 7 is repeated in the upper byte."""
    strip.of_rows(values, 1).copy_(strip.of_plane(plane.view(torch.int8), 1))


def scatter_lo(plane: Tensor, pairs: Tensor, strip: Strip) -> None:
    """Write bytes of two nibbles, int32 [16 * bands, padded columns / 2], into LO [bands, 8 * padded columns]."""
    halves = strip.of_rows(pairs, 2).unflatten(-1, (2, -1))
    words = (halves[..., 1, :] << 8).bitwise_or_(halves[..., 0, :])
    strip.of_plane(plane.view(torch.int16), 4).copy_(words)


def gather_lo(pairs: Tensor, plane: Tensor, strip: Strip) -> None:
    """Read LO into int32 [16 * bands, padded columns / 2]; only the lowest byte of each is meant."""
    words = strip.of_plane(plane.view(torch.int16), 4)
    halves = strip.of_rows(pairs, 2).unflatten(-1, (2, -1))
    halves[..., 0, :].copy_(words)
    halves[..., 1, :].copy_(words >> 8)
