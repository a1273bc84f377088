# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""(I + T)^-1 of a strictly lower triangular T.

It is merged from halves, blocks of 2, 4, .. rows at once: with C the block between two of them,

    [A 0; C B]^-1 = [A^-1 0; -B^-1 C A^-1 B^-1]    so    X <- X - X C X    over all blocks of a size.

Each step multiplies true inverses, whose entries stay small where keys are alike and rates near one. Inversion by
squaring, (I - T)(I + T^2)(I + T^4)(I + T^8), has entries that cancel there, and loses digits (docs/tree-kernels.md).
Up to 32 rows are one matrix; 64 go in tiles of 16, since products of whole matrices would cost more than they save.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lossguard_kernels.wy_verify.precision import products


@triton.jit
def _between(left, right, level):
    """Where a block of 2^(level + 1) rows has its lower left quarter, if all above the diagonal is zero."""
    return (left >> (level + 1) == right >> (level + 1)) & (left >> level != right >> level)


@triton.jit
def _inverse(system, SIZE: tl.constexpr):
    """(I + T)^-1 of [SIZE, SIZE]."""
    index = tl.arange(0, SIZE)
    left, right = index[:, None], index[None, :]
    found = tl.where(left == right, 1.0, tl.where(_between(left, right, 0), -system, 0.0))
    for level in tl.static_range(1, 5):
        if SIZE >> level > 1:
            outer = tl.where(_between(left, right, level), system, 0.0)
            found -= products(found, products(outer, found))
    return found


@triton.jit
def _inverses(inner, TILES: tl.constexpr):
    """(I + T)^-1 of [TILES, 16, 16], all at once."""
    index = tl.arange(0, 16)
    left, right = index[None, :, None], index[None, None, :]
    found = tl.where(left == right, 1.0, tl.where(_between(left, right, 0), -inner, 0.0))
    for level in tl.static_range(1, 4):
        outer = tl.where(_between(left, right, level), inner, 0.0)
        found -= products(found, products(outer, found))
    return found


@triton.jit
def _rows_of(x, tile, TILES: tl.constexpr, WIDTH: tl.constexpr):
    """[16, WIDTH]: one of the tiles of [TILES * 16, WIDTH]."""
    is_tile = (tl.arange(0, TILES) == tile)[:, None, None]
    return tl.sum(tl.where(is_tile, tl.reshape(x, (TILES, 16, WIDTH)), 0.0), 0)


@triton.jit
def _tile_by_tile(system, TILES: tl.constexpr):
    """(I + T)^-1 of [TILES * 16, TILES * 16]: row of tiles by row of tiles, those that are not found yet being zero."""
    SIZE: tl.constexpr = TILES * 16
    tiles, rows = tl.arange(0, TILES), tl.arange(0, SIZE)
    is_inner = tiles[:, None, None, None] == tiles[None, None, :, None]
    inner = tl.sum(tl.where(is_inner, tl.reshape(system, (TILES, 16, TILES, 16)), 0.0), 2)
    inverses, own = _inverses(inner, TILES), tl.where(rows[:, None] == rows[None, :], 1.0, 0.0)
    found = tl.zeros((SIZE, SIZE), tl.float32)
    for tile in tl.static_range(TILES):
        right = _rows_of(own, tile, TILES, SIZE)
        if tile > 0:
            right -= products(_rows_of(system, tile, TILES, SIZE), found)
        left = tl.sum(tl.where((tiles == tile)[:, None, None], inverses, 0.0), 0)
        done = tl.broadcast_to(products(left, right)[None, :, :], (TILES, 16, SIZE))
        found = tl.where((rows // 16 == tile)[:, None], tl.reshape(done, (SIZE, SIZE)), found)
    return found


@triton.jit
def inverse(system, SIZE: tl.constexpr):
    """(I + T)^-1 for T = ``system`` [SIZE, SIZE]; SIZE is 16, 32 or 64."""
    return _inverse(system, SIZE) if SIZE <= 32 else _tile_by_tile(system, SIZE // 16)
