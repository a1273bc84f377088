"""Launches worth timing for a shape, best guess first, by a model of where their time goes.

The model has four terms: the bytes of the block with most work at that multiprocessor's share of the bandwidth, or
the time its warps take to decode them, whichever is longer; filling the ring at the start; what every group of bands
costs at its end; and the second pass over partial sums when columns are split.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from lossguard_kernels.w12_gemm.variants import Device, Launch, Variant, x_rows_for

SLICES = (1, 2, 3, 4, 5, 6, 8, 11, 12)
_BYTES_PER_MICROSECOND = 4.4e6
_CYCLES_PER_MICROSECOND = 1.75e3
_START, _GROUP_END, _SPLIT = 1.5, 0.3, 1.0
_X_SHARE = 0.5  # x comes from the L2 cache
_REGISTERS_PER_LANE, _REGISTERS = 512, 64
_MOST_STAGES, _FEWEST_STAGES = 16, 2
_RING_BYTES = 208 << 10
_SMALL_M = (
    (1, 1, 8, 8), (2, 1, 8, 8), (3, 1, 8, 8), (4, 1, 8, 8), (1, 2, 8, 8), (1, 3, 4, 8), (2, 2, 4, 4), (3, 2, 4, 4),
    (2, 4, 2, 2), (1, 4, 2, 4), (1, 7, 2, 4), (2, 5, 2, 2), (1, 10, 1, 2), (2, 8, 1, 2), (2, 9, 1, 2), (3, 6, 1, 2),
    (2, 9, 1, 1),
)  # fmt: skip
_LARGE_M = (
    (1, 8, 1, 2), (2, 8, 1, 2), (1, 10, 1, 2), (2, 9, 1, 2), (1, 12, 1, 2), (1, 15, 1, 2), (1, 6, 2, 4), (1, 8, 2, 2),
    (2, 4, 2, 2), (2, 4, 2, 4), (2, 5, 2, 2), (3, 6, 1, 2), (2, 9, 1, 1), (3, 4, 2, 2), (2, 6, 2, 2), (2, 7, 1, 2),
    (2, 4, 1, 2), (2, 6, 1, 1), (3, 4, 1, 1), (2, 8, 1, 1), (1, 8, 1, 1),
)  # fmt: skip
_FORMS = {1: _SMALL_M, 8: _SMALL_M, 16: _LARGE_M, 32: _LARGE_M, 64: _LARGE_M}
"""bands, warps_n, warps_k, k_tiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is multiplied: ``num_bands`` of 16 rows, ``num_tiles`` of 64 columns, m rows of x."""

    num_bands: int
    num_tiles: int
    m: int
    hi_only: bool = False


def variants_for(x_rows: int, device: Device, *, hi_only: bool = False) -> tuple[Variant, ...]:
    """All forms with as many stages as fit."""
    found = []
    for bands, warps_n, warps_k, k_tiles in _FORMS[x_rows]:
        for min_blocks in (1, 2):
            form = Variant(
                x_rows=x_rows,
                bands=bands,
                warps_n=warps_n,
                warps_k=warps_k,
                k_tiles=k_tiles,
                stages=1,
                min_blocks=min_blocks,
                hi_only=hi_only,
            )
            room = min(_RING_BYTES // min_blocks, device.shared_bytes_per_block // min_blocks - 1024)
            stages = min(_MOST_STAGES, (room - form.shared_bytes) // (form.stage_bytes + 24) + 1)
            if stages >= _FEWEST_STAGES and _has_registers(form):
                found.append(replace(form, stages=stages))
    return tuple(found)


def _has_registers(form: Variant) -> bool:
    """Whether the loop keeps its sums and fragments in registers."""
    warps = form.num_threads // 32 * form.min_blocks
    available = min(255, _REGISTERS_PER_LANE // -(-warps // 4))
    return available >= _REGISTERS + 6 * form.bands * form.column_tiles


def candidates(shape: Shape, device: Device) -> tuple[Launch, ...]:
    """Every launch that is possible, best guess first.

    Forms of which two blocks fit a multiprocessor are also tried with one block each: then the blocks of the next
    product may move in before this one ends. It is no more than even (docs/w12-gemm.md), so the model sees no gain.
    """
    launches = []
    for variant in variants_for(x_rows_for(shape.m), device, hi_only=shape.hi_only):
        for num_per_multiprocessor in range(1, variant.min_blocks + 1):
            num_blocks = device.num_multiprocessors * num_per_multiprocessor
            for slices in SLICES:
                most = max(1, min(num_blocks // slices, shape.num_bands))
                parts = -(-shape.num_bands // -(-shape.num_bands // most))  # no block without its share
                if slices <= num_blocks and slices * variant.k_tiles * 2 <= max(shape.num_tiles, 2 * variant.k_tiles):
                    launches.append(Launch(variant=variant, parts=parts, slices=slices))
    return tuple(sorted(launches, key=lambda launch: guessed_microseconds(launch, shape, device)))


def shortlist(shape: Shape, device: Device, num_wanted: int) -> tuple[Launch, ...]:
    """The first of the candidates, but no more than an eighth, or two, of one grid: the model is a guess."""
    found: list[Launch] = []
    counts: Counter[tuple[int, int]] = Counter()
    for launch in candidates(shape, device):
        grid = (launch.parts, launch.slices)
        counts[grid] += 1
        if counts[grid] <= max(2, num_wanted // 8):
            found.append(launch)
    return tuple(found[:num_wanted])


def guessed_microseconds(launch: Launch, shape: Shape, device: Device) -> float:
    """The model of this module."""
    variant = launch.variant
    bands, tiles = -(-shape.num_bands // launch.parts), -(-shape.num_tiles // launch.slices)
    groups = -(-bands // variant.block_bands)
    per_multiprocessor = -(-launch.parts * launch.slices // device.num_multiprocessors)
    share = _BYTES_PER_MICROSECOND / device.num_multiprocessors / per_multiprocessor
    weights = 1024 * (1.0 if variant.hi_only else 1.5) * bands * tiles
    reading = (weights + _X_SHARE * groups * tiles * 128 * shape.m) / share
    cycles_per_tile = 250 + variant.bands * (80 + 25 * variant.column_tiles)
    decoding = groups * -(-tiles // variant.warps_k) * cycles_per_tile / _CYCLES_PER_MICROSECOND
    ending = _GROUP_END * min(groups, 4)
    split = 0.0 if launch.slices == 1 else _SPLIT + bands * variant.column_tiles * 1024 / share
    return max(reading, decoding) + _START + ending + split
