# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""(I + T) U = R for a strictly lower triangular T, in tiles of 16 rows.

Tiles on the diagonal are inverted row by row, all at once; then U is solved tile after tile with products. Inversion by
squaring, (I - T)(I + T^2)(I + T^4)(I + T^8), has fewer steps and loses digits where keys are alike and rates near one
(docs/tree-kernels.md).
"""

from __future__ import annotations

import triton
import triton.language as tl

from lossguard_kernels.wy_verify.precision import products


@triton.jit
def _inverses(inner, TILES: tl.constexpr):
    """(I + T)^-1 of strictly lower triangular [TILES, 16, 16]."""
    index = tl.arange(0, 16)
    is_own = (index[:, None] == index[None, :])[None, :, :]
    found = tl.where(is_own, 1.0, tl.zeros((TILES, 16, 16), tl.float32))
    for row in range(1, 16):
        is_row = (index == row)[None, :, None]
        factors = tl.sum(tl.where(is_row, inner, 0.0), 1)
        earlier = tl.sum(factors[:, :, None] * found, 1)
        found = tl.where(is_row, found - earlier[:, None, :], found)
    return found


@triton.jit
def _rows_of(x, tile, TILES: tl.constexpr, WIDTH: tl.constexpr):
    """[16, WIDTH]: one of the tiles of [TILES * 16, WIDTH]."""
    is_tile = (tl.arange(0, TILES) == tile)[:, None, None]
    return tl.sum(tl.where(is_tile, tl.reshape(x, (TILES, 16, WIDTH)), 0.0), 0)


@triton.jit
def solve(system, right, TILES: tl.constexpr, WIDTH: tl.constexpr):
    """U [TILES * 16, WIDTH] for T = ``system`` [TILES * 16, TILES * 16] and R = ``right``."""
    SIZE: tl.constexpr = TILES * 16
    tiles = tl.arange(0, TILES)
    is_inner = tiles[:, None, None, None] == tiles[None, None, :, None]
    inner = tl.sum(tl.where(is_inner, tl.reshape(system, (TILES, 16, TILES, 16)), 0.0), 2)
    inverse = _inverses(inner, TILES)
    if TILES == 1:
        return products(tl.reshape(inverse, (16, 16)), right)
    rows = tl.arange(0, SIZE)
    outer = tl.where(rows[:, None] // 16 > rows[None, :] // 16, system, 0.0)
    solved = right
    for tile in tl.static_range(TILES):
        mine = _rows_of(right, tile, TILES, WIDTH)
        if tile > 0:
            mine -= products(_rows_of(outer, tile, TILES, SIZE), solved)
        own = tl.sum(tl.where((tiles == tile)[:, None, None], inverse, 0.0), 0)
        done = tl.broadcast_to(products(own, mine)[None, :, :], (TILES, 16, WIDTH))
        solved = tl.where((rows // 16 == tile)[:, None], tl.reshape(done, (SIZE, WIDTH)), solved)
    return solved
