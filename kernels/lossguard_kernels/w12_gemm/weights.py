"""W12 planes as the kernels read them: tiles of 16 rows x 64 columns, and nibbles beside the bytes that they belong to.

A tile of HI is 16 rows of 64 bytes. A tile of LO is 16 rows of 32 bytes; byte ``4 q + b`` of a row holds column
``8 q + b`` in its low nibble and ``8 q + 4 + b`` in its high one, so that a 32-bit word of LO lies under two words of
HI byte by byte. Rows are padded to 16 and columns to 64, with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

BAND_ROWS = 16
TILE_COLUMNS = 64
_FILE_TILE_COLUMNS = 128
_TENSORS = ("hi", "lo", "escape_start", "escape_place", "escape_bits", "base", "counters")
_CHUNK_BYTES = 1 << 27
LOWEST_BASE = 64
"""Below it, a product with an escape could leave float32 while it is scaled like the others."""


class W12Parts(Protocol):
    """A matrix as its file holds it (docs/w12.md)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns, without padding."""

    @property
    def hi(self) -> Tensor:
        """uint8 [bands, 16 * columns padded to 16]."""

    @property
    def lo(self) -> Tensor:
        """uint8 [bands, 8 * columns padded to 16]."""

    @property
    def escape_start(self) -> Tensor:
        """int32 [bands + 1]."""

    @property
    def escape_place(self) -> Tensor:
        """int32 [escapes]: ``(row % 128) << 24 | column``."""

    @property
    def escape_bits(self) -> Tensor:
        """int16 [escapes]: bf16 patterns."""

    @property
    def base(self) -> Tensor:
        """uint8 [1] or [padded rows]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWeights:
    """A matrix of ``rows`` x ``columns`` bf16 weights for the kernels of this package.

    ``hi`` uint8 [bands, tiles, 16, 64], ``lo`` uint8 [bands, tiles, 16, 32], ``base`` uint8 [1] or [16 * bands],
    ``escape_*`` as in ``W12Parts``, but ``escape_place`` and ``escape_bits`` may go on with zeros that no band has
    (``same_sizes``), ``counters`` int32 [bands]: zero whenever no product with these weights is running.
    So two products with the same weights must not run at the same time; one after another on a stream is fine.
    """

    rows: int
    columns: int
    hi: Tensor
    lo: Tensor
    escape_start: Tensor
    escape_place: Tensor
    escape_bits: Tensor
    base: Tensor
    counters: Tensor
    reason_against_fusing: str | None = None
    """Why these weights should be decoded before they are multiplied, if so."""

    @classmethod
    def of_tensors(
        cls, tensors: Sequence[Tensor], *, rows: int, columns: int, reason_against_fusing: str | None = None
    ) -> Self:
        """From what ``tensors`` gave, in its order."""
        hi, lo, escape_start, escape_place, escape_bits, base, counters = tensors
        return cls(
            rows=rows,
            columns=columns,
            hi=hi,
            lo=lo,
            escape_start=escape_start,
            escape_place=escape_place,
            escape_bits=escape_bits,
            base=base,
            counters=counters,
            reason_against_fusing=reason_against_fusing,
        )

    @classmethod
    def pack(cls, parts: W12Parts) -> Self:
        """Arrange a matrix of two dimensions for the kernels, on the device where it is.

        Returns when the device has done so: products fetch weights before the kernel ahead of them has ended.
        """
        rows, columns = parts.shape
        assert len(parts.shape) == 2, "a product needs a matrix"
        num_bands = parts.hi.shape[0]
        packed = cls(
            rows=rows,
            columns=columns,
            hi=_in_chunks(_hi_tiles, parts.hi, 1),
            lo=_in_chunks(_lo_tiles, parts.lo, 2),
            escape_start=parts.escape_start,
            escape_place=parts.escape_place,
            escape_bits=parts.escape_bits,
            base=parts.base,
            counters=torch.zeros(num_bands, dtype=torch.int32, device=parts.hi.device),
            reason_against_fusing=_reason_against_fusing(parts),
        )
        if packed.hi.is_cuda:
            torch.cuda.current_stream(packed.device).synchronize()
        return packed

    @property
    def num_bands(self) -> int:
        """Bands of 16 rows."""
        return self.hi.shape[0]

    @property
    def num_tiles(self) -> int:
        """Tiles of 64 columns."""
        return self.hi.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.hi.device

    @property
    def num_bytes(self) -> int:
        """Bytes that one product must read; x, counters and what follows the escapes not counted."""
        arrays = (self.hi, self.lo, self.escape_start, self.base)
        escapes = (self.escape_place.element_size() + self.escape_bits.element_size()) * int(self.escape_start[-1])
        return sum(array.numel() * array.element_size() for array in arrays) + escapes

    def tensors(self) -> dict[str, Tensor]:
        """The arrays by name."""
        return {name: getattr(self, name) for name in _TENSORS}


def escape_rows(escape_start: Tensor, escape_place: Tensor) -> Tensor:
    """The row of every escape, int64 [escapes]; what follows the last band's escapes is none."""
    counts = escape_start.diff().to(torch.int64)
    band = torch.arange(counts.numel(), device=counts.device).repeat_interleave(counts)
    return band * BAND_ROWS + (escape_place[: band.numel()].to(torch.int64) >> 24) % BAND_ROWS


def _reason_against_fusing(parts: W12Parts) -> str | None:
    rows = escape_rows(parts.escape_start, parts.escape_place)
    bases = parts.base if parts.base.numel() == 1 else parts.base[rows]
    if rows.numel() and int(bases.min()) < LOWEST_BASE:
        return f"rows with escapes have a base under {LOWEST_BASE}: sums that are scaled as theirs could overflow"
    return None


def _in_chunks(arrange: _Arrange, plane: Tensor, columns_per_byte: int) -> Tensor:
    step = max(1, _CHUNK_BYTES // plane.shape[1])
    return torch.cat([arrange(chunk, chunk.shape[1] * columns_per_byte // BAND_ROWS) for chunk in plane.split(step)])


class _Arrange(Protocol):
    def __call__(self, plane: Tensor, columns: int) -> Tensor: ...


def _hi_tiles(plane: Tensor, columns: int) -> Tensor:
    """uint8 [bands, 16 * columns] of a file -> [bands, tiles, 16, 64]."""
    return _tiles(_by_rows(plane, columns, 1), TILE_COLUMNS)


def _lo_tiles(plane: Tensor, columns: int) -> Tensor:
    """uint8 [bands, 8 * columns] of a file -> [bands, tiles, 16, 32]."""
    full = columns // _FILE_TILE_COLUMNS * _FILE_TILE_COLUMNS
    split = BAND_ROWS * full // 2
    pieces = []
    for part, width in ((plane[:, :split], _FILE_TILE_COLUMNS), (plane[:, split:], columns - full)):
        if part.shape[1]:
            # [bands, tiles, 16, pair within a half, half] -> [bands, 16, tiles, half, pair]
            pairs = part.reshape(part.shape[0], -1, BAND_ROWS, width // 4, 2).permute(0, 2, 1, 4, 3)
            pieces.append(torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(2))
    nibbles = pad(torch.cat(pieces, dim=2), (0, -columns % TILE_COLUMNS)).unflatten(2, (-1, 2, 4))
    packed = (nibbles[:, :, :, 1] << 4) | nibbles[:, :, :, 0]
    return _tiles(packed.flatten(2), TILE_COLUMNS // 2)


def _by_rows(plane: Tensor, columns: int, unit: int) -> Tensor:
    """Tiles of a file -> [bands, 16, columns / unit]."""
    full = columns // _FILE_TILE_COLUMNS * _FILE_TILE_COLUMNS
    split = BAND_ROWS * full // unit
    pieces = []
    for part, width in ((plane[:, :split], _FILE_TILE_COLUMNS), (plane[:, split:], columns - full)):
        if part.shape[1]:
            pieces.append(part.reshape(part.shape[0], -1, BAND_ROWS, width // unit).transpose(1, 2).flatten(2))
    return torch.cat(pieces, dim=2)


def _tiles(rows: Tensor, width: int) -> Tensor:
    """[bands, 16, bytes] -> [bands, tiles, 16, width], padded with zeros."""
    padded = pad(rows, (0, -rows.shape[2] % width))
    tiles: Tensor = padded.unflatten(2, (-1, width))
    return tiles.transpose(1, 2).contiguous()
