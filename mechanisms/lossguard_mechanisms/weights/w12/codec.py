"""Encoding and decoding with whole-tensor integer operations: the same code on CPU and GPU, exact for every pattern.

Work goes in blocks of rows that stay in the cache of a CPU core. All arithmetic is on int16 and, for pairs of nibbles,
on the same memory as int32.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from lossguard_mechanisms.weights.w12.bases import BaseChoice, choose_bases
from lossguard_mechanisms.weights.w12.failures import unsupported_shape, wrong_dtype
from lossguard_mechanisms.weights.w12.layout import (
    COLUMN_BITS,
    END_RECORD,
    FIRST_RECORD,
    MAX_COLUMNS,
    PLACE_ROWS,
    TILE_ROWS,
    Layout,
)
from lossguard_mechanisms.weights.w12.tiles import Strip, gather_hi, gather_lo, scatter_hi, scatter_lo, strips_of
from lossguard_mechanisms.weights.w12.w12_tensor import W12Tensor, escape_positions, matrix_layout

_BLOCK_ON_CPU = 1 << 19
_BLOCK_ON_DEVICE = 1 << 26
_SIGN = -0x8000

assert sys.byteorder == "little", "pairs of weights are seen as one larger integer, lower column first"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """A run of whole bands: its first band, and its rows of the matrix (the last may lack padding rows)."""

    first_band: int
    num_bands: int
    rows: slice

    @property
    def bands(self) -> slice:
        """Its bands in both planes."""
        return slice(self.first_band, self.first_band + self.num_bands)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planes:
    """Where an encoder writes."""

    hi: Tensor
    lo: Tensor
    strips: tuple[Strip, ...]


def pattern_matrix(weight: Tensor) -> Tensor:
    """The bit patterns of bf16 weights as int16 [rows, columns], without a copy where strides allow.

    Raises UsageError LG1201 for another dtype and LG1202 for a shape that is no matrix.
    """
    if weight.dtype != torch.bfloat16:
        raise wrong_dtype(str(weight.dtype).removeprefix("torch."))
    problem = shape_problem(tuple(weight.shape))
    if problem is not None:
        raise unsupported_shape(tuple(weight.shape), problem)
    return weight.detach().contiguous().view(torch.int16).reshape(-1, weight.shape[-1])


def shape_problem(shape: tuple[int, ...]) -> str | None:
    """Why a shape cannot be held, or None."""
    if len(shape) < 2:
        return "it has fewer than two dimensions"
    if 0 in shape:
        return "it is empty"
    if shape[-1] >= MAX_COLUMNS:
        return f"it has {shape[-1]:,} columns, {MAX_COLUMNS - 1:,} are possible"
    return None


def encode(weight: Tensor, choice: BaseChoice | None = None) -> W12Tensor:
    """Encode bf16 weights of shape [..., columns]; ``choice`` defaults to what ``choose_bases`` finds.

    Raises UsageError LG1201 or LG1202.
    """
    bits = pattern_matrix(weight)
    layout = matrix_layout(tuple(weight.shape))
    base = (choose_bases(bits) if choice is None else choice).base
    if base.numel() > 1:
        base = pad(base, (0, layout.padded_rows - layout.rows))
    hi = torch.empty(layout.num_bands, TILE_ROWS * layout.padded_columns, dtype=torch.uint8, device=bits.device)
    lo = torch.empty(layout.num_bands, hi.shape[1] // 2, dtype=torch.uint8, device=bits.device)
    target, escapes = _Planes(hi=hi, lo=lo, strips=strips_of(layout)), []
    for block in _blocks(layout, bits.device):
        rows = _padded(bits[block.rows], block, layout)
        found = _encode_block(rows, _base_of(base, block), block, target)
        escapes.append(found + block.rows.start * layout.padded_columns)
    flat = torch.cat(escapes)
    row, column = flat // layout.padded_columns, flat % layout.padded_columns
    counts = torch.bincount(row // TILE_ROWS, minlength=layout.num_bands)
    return W12Tensor(
        shape=tuple(weight.shape),
        hi=hi,
        lo=lo,
        escape_start=pad(counts.cumsum(0), (1, 0)).to(torch.int32),
        escape_place=((row % PLACE_ROWS << COLUMN_BITS) | column).to(torch.int32),
        escape_bits=bits[row, column],
        base=base,
    )


def decode(coded: W12Tensor, out: Tensor | None = None) -> Tensor:
    """The bf16 weights, bit for bit, of the shape that was encoded; into ``out`` (contiguous) if one is given."""
    layout = coded.layout
    if out is None:
        out = torch.empty(coded.shape, dtype=torch.bfloat16, device=coded.hi.device)
    assert out.is_contiguous(), "weights are written row after row"
    assert out.dtype == torch.bfloat16, "weights are bf16"
    bits = out.view(torch.int16).view(layout.rows, layout.columns)
    strips = strips_of(layout)
    for block in _blocks(layout, bits.device):
        _decode_block(coded, block, strips, bits[block.rows])
    row, column = escape_positions(coded)
    bits[row, column] = coded.escape_bits
    return out


def _encode_block(rows: Tensor, base: Tensor, block: _Block, target: _Planes) -> Tensor:
    """Fill both planes for one block; returns the flat positions of its escapes (padded columns counted)."""
    magnitude = rows & 0x7FFF
    record = magnitude - base
    # Both differences are negative exactly in band, so the sign of their AND is a mask of all ones or none.
    in_band = ((FIRST_RECORD - 1 - record) & (record - END_RECORD)) >> 15
    record &= in_band
    escapes = _nonzero(magnitude.bitwise_and_(in_band.bitwise_not_()))
    hi = (rows >> 8).bitwise_and_(0x80).bitwise_or_(record >> 4)
    hi.view(-1)[escapes] = 0
    pairs = record.view(torch.int32)
    nibbles = (pairs >> 12).bitwise_and_(0xF0).bitwise_or_(pairs & 0x0F)
    for strip in target.strips:
        scatter_hi(target.hi[block.bands], hi, strip)
        scatter_lo(target.lo[block.bands], nibbles, strip)
    return escapes


def _decode_block(coded: W12Tensor, block: _Block, strips: tuple[Strip, ...], out: Tensor) -> None:
    layout = coded.layout
    shape = (block.num_bands * TILE_ROWS, layout.padded_columns)
    hi = torch.empty(shape, dtype=torch.int16, device=out.device)
    nibbles = torch.empty(shape[0], shape[1] // 2, dtype=torch.int32, device=out.device)
    for strip in strips:
        gather_hi(hi, coded.hi[block.bands], strip)
        gather_lo(nibbles, coded.lo[block.bands], strip)
    pairs = (nibbles & 0xF0).bitwise_left_shift_(12).bitwise_or_(nibbles.bitwise_and_(0x0F))
    record = (hi << 4).bitwise_and_(0x7F0).bitwise_or_(pairs.view(torch.int16))
    is_set = record.neg().bitwise_right_shift_(15)  # all ones unless zero, for which no base is added
    magnitude = record.add_(is_set.bitwise_and_(_base_of(coded.base, block)))
    magnitude = magnitude.bitwise_or_(hi.bitwise_and_(_SIGN))
    out.copy_(magnitude[: out.shape[0], : layout.columns])


def _nonzero(values: Tensor) -> Tensor:
    """Flat positions of non-zero entries of int16 [rows, columns]; four at a time, since nearly all are zero."""
    words = values.view(torch.int64).view(-1).nonzero().view(-1)
    within = values.view(-1, 4)[words].nonzero()
    return words[within[:, 0]] * 4 + within[:, 1]


def _blocks(layout: Layout, device: torch.device) -> Iterator[_Block]:
    size = _BLOCK_ON_CPU if device.type == "cpu" else _BLOCK_ON_DEVICE
    step = max(1, size // (TILE_ROWS * layout.padded_columns))
    for first in range(0, layout.num_bands, step):
        num_bands = min(step, layout.num_bands - first)
        rows = slice(first * TILE_ROWS, min((first + num_bands) * TILE_ROWS, layout.rows))
        yield _Block(first_band=first, num_bands=num_bands, rows=rows)


def _padded(rows: Tensor, block: _Block, layout: Layout) -> Tensor:
    missing = block.num_bands * TILE_ROWS - rows.shape[0]
    if missing == 0 and layout.columns == layout.padded_columns:
        return rows
    return pad(rows, (0, layout.padded_columns - layout.columns, 0, missing))


def _base_of(base: Tensor, block: _Block) -> Tensor:
    """What the base adds to a record, int16 [rows of the block, 1] or [1]."""
    start = block.first_band * TILE_ROWS
    rows = base if base.numel() == 1 else base[start : start + block.num_bands * TILE_ROWS, None]
    return rows.to(torch.int16) << 7
