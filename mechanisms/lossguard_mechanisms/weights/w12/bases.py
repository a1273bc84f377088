"""Which exponents get a code: one window of 15 per matrix or per row, chosen by counting what would escape.

Counts are exact. Candidates are the 49 bases around the best one of a sample; a row whose weights are larger or smaller
than most by more than 2^24 escapes, which costs space and no bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lossguard_mechanisms.weights.w12.layout import ESCAPE_BYTES, MAX_BASE, NUM_CODES

_SAMPLE = 1 << 13
_NUM_CANDIDATES = 49
_NUM_BINS = 128
"""Two bins for each of 64 exponents: mantissas under 112, and the rest, which code 15 cannot hold."""

_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseChoice:
    """``base`` uint8 [1] or [rows], how many weights escape with it, and why it was chosen."""

    base: Tensor
    num_escapes: int
    reason: str


def choose_bases(bits: Tensor) -> BaseChoice:
    """Choose for a matrix of bf16 patterns, int16 [rows, columns]: per row only where that makes the matrix smaller."""
    low = _lowest_candidate(bits)
    weights = torch.arange(_NUM_CANDIDATES, device=bits.device)
    total = torch.zeros(_NUM_CANDIDATES, dtype=torch.int64, device=bits.device)
    bases, in_band_by_row, num_zeros = [], 0, 0
    rows_per_chunk = max(1, _CHUNK // bits.shape[1])
    scratch = _Scratch.of(min(rows_per_chunk, bits.shape[0]), bits)
    for chunk in bits.split(rows_per_chunk):
        magnitude = torch.bitwise_and(chunk, 0x7FFF, out=scratch.octant[: len(chunk)])
        num_zeros += magnitude.numel() - int(torch.count_nonzero(magnitude))
        counts = _in_band_counts(scratch, len(chunk), low)
        best = (counts * _NUM_CANDIDATES - weights).argmax(dim=1)  # the lowest of equals, on every device
        bases.append((best + low).to(torch.uint8))
        in_band_by_row += int(counts.gather(1, best[:, None]).sum())
        total += counts.sum(dim=0)
    best_of_all = int((total * _NUM_CANDIDATES - weights).argmax())
    num_nonzero = bits.numel() - num_zeros
    escapes_by_row, escapes = num_nonzero - in_band_by_row, num_nonzero - int(total[best_of_all])
    if ESCAPE_BYTES * escapes_by_row + bits.shape[0] < ESCAPE_BYTES * escapes + 1:
        reason = f"base per row: {escapes_by_row} escapes, {escapes} with one base"
        return BaseChoice(base=torch.cat(bases), num_escapes=escapes_by_row, reason=reason)
    one = torch.tensor([best_of_all + low], dtype=torch.uint8, device=bits.device)
    reason = f"one base: {escapes} escapes; with one per row {escapes_by_row}, and more space in all"
    return BaseChoice(base=one, num_escapes=escapes, reason=reason)


def _lowest_candidate(bits: Tensor) -> int:
    """The lowest base to try: 24 under the best one of a sample of the non-zero weights."""
    flat = bits.reshape(-1)
    for sample in (flat[:: max(1, flat.numel() // _SAMPLE)], flat):
        magnitude = sample & 0x7FFF
        exponents = (magnitude[magnitude != 0] >> 7).to(torch.int64)
        if exponents.numel():
            break
    below = torch.bincount(exponents, minlength=256).cumsum(0)
    counts = below[NUM_CODES : MAX_BASE + NUM_CODES + 1] - below[: MAX_BASE + 1]
    best = int((counts * counts.numel() - torch.arange(counts.numel(), device=bits.device)).argmax())
    return min(max(best - _NUM_CANDIDATES // 2, 0), MAX_BASE + 1 - _NUM_CANDIDATES)


@dataclass(frozen=True, slots=True)
class _Scratch:
    """Memory for one chunk, kept from chunk to chunk: fresh pages would cost more than the arithmetic."""

    octant: Tensor
    carry: Tensor
    bins: Tensor

    @classmethod
    def of(cls, num_rows: int, bits: Tensor) -> Self:
        """For chunks of up to so many rows of ``bits``."""
        shape = (num_rows, bits.shape[1])
        bins = torch.empty(shape, dtype=torch.int32, device=bits.device)
        return cls(bits.new_empty(shape), bits.new_empty(shape), bins)


def _in_band_counts(scratch: _Scratch, num_rows: int, low: int) -> Tensor:
    """How many weights of each row are in band for each candidate, int64 [rows, candidates]; zeros are not counted.

    ``scratch.octant`` holds the magnitudes [rows, columns] of a chunk and is overwritten.
    """
    octant, carry, bins = (buffer[:num_rows] for buffer in (scratch.octant, scratch.carry, scratch.bins))
    octant >>= 4
    torch.add(octant, 1, out=carry)
    octant >>= 3
    # 2 e for mantissas under 112 and 2 e + 1 for others: the carry of one octant says which.
    octant += carry.bitwise_right_shift_(3)
    bins.copy_(octant.sub_(2 * low).clamp_(0, _NUM_BINS - 1))
    bins += torch.arange(0, num_rows * _NUM_BINS, _NUM_BINS, dtype=torch.int32, device=bins.device)[:, None]
    histogram = torch.bincount(bins.view(-1), minlength=num_rows * _NUM_BINS).view(num_rows, _NUM_BINS)
    below = histogram.cumsum(dim=1)  # column j: weights in bins 0 to j
    upper = below[:, 2 * NUM_CODES :: 2][:, :_NUM_CANDIDATES]
    lower = below[:, 1::2][:, :_NUM_CANDIDATES]
    return upper - lower
