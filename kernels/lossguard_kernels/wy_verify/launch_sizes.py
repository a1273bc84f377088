"""Tiles of the kernels: what a program holds, by the sizes of a layer and the number of programs."""

from __future__ import annotations

from dataclasses import dataclass

_COLUMNS = (128, 64, 32, 16)
_LEAST_COLUMNS = 32
_MOST_ROWS = 64  # of the state that a program reads at a time
_WIDE_TILE = 64
ALONE_TILE = 16
"""The largest tile of nodes whose relations are worked out beside the state."""
_ENOUGH_PROGRAMS = 264  # two for each multiprocessor of the largest devices


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSizes:
    """``block`` columns of the state a program, read ``part`` rows at a time, by ``warps`` warps."""

    block: int
    part: int
    warps: int
    stages: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RelateSizes:
    """``part`` channels of the keys at a time, by ``warps`` warps."""

    part: int
    warps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What decides them."""

    tile: int
    programs: int  # requests times value heads
    key_dim: int
    value_dim: int


def verify_sizes(work: Work) -> LaunchSizes:
    """Of a verification: as many columns as leave every multiprocessor two programs, so that rows are read once.

    Wide tiles would spill with more columns. With 8 warps Triton 3.6 and 3.7 lay products in a chain over 128 rows, of
    which 64 are there: wrong sums, and accesses past the operand.
    """
    is_wide = work.tile == _WIDE_TILE
    block = _block_of(work, most=64 if is_wide else 128)
    ahead = 4 if block <= 32 else 3
    return LaunchSizes(block=block, part=_part_of(work.key_dim, 32), warps=4, stages=3 if is_wide else ahead)


def relate_sizes(work: Work) -> RelateSizes:
    """Of what comes first, where anything does: few warps wait little for each other."""
    return RelateSizes(part=_part_of(work.key_dim, 32), warps=4 if work.tile == _WIDE_TILE else 2)


def commit_sizes(work: Work) -> LaunchSizes:
    """Of a commit."""
    return LaunchSizes(block=_block_of(work, most=64), part=_part_of(work.key_dim, _MOST_ROWS), warps=4)


def _block_of(work: Work, *, most: int) -> int:
    """The most columns that leave enough programs; at least 32 where they divide, for rows of whole cache lines."""
    fitting = [block for block in _COLUMNS if block <= most and work.value_dim % block == 0]
    allowed = [block for block in fitting if block >= min(_LEAST_COLUMNS, fitting[0])]
    enough = (block for block in allowed if work.programs * (work.value_dim // block) >= _ENOUGH_PROGRAMS)
    return next(enough, allowed[-1])


def _part_of(key_dim: int, most: int) -> int:
    return min(most, key_dim & -key_dim)
