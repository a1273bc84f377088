"""Layouts of products that are larger than their tiles, in lines as Triton writes them."""

from __future__ import annotations

from benchmarks.tree_kernels_compiled import overhang

LAYOUTS = """
#mma = #ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [8, 1], instrShape = [16, 16, 16]}>
#mma1 = #ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 2], instrShape = [16, 16, 16]}>
#mma2 = #ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [1, 8], instrShape = [16, 8]}>
"""


def product(rows: int, layout: str, kind: str = "ttng.warp_group_dot") -> str:
    operands = f"!ttg.memdesc<{rows}x32xbf16, #shared, #smem, mutable> * !ttg.memdesc<32x32xbf16, #shared1, #smem>"
    return (
        f"%a_{rows} = {kind} %k, %s, %acc {{isAsync = true}} : {operands} -> tensor<{rows}x32xf32, {layout}> loc(#l)\n"
    )


def test_a_product_of_eight_warps_over_64_rows_is_found() -> None:
    found = overhang(LAYOUTS + product(64, "#mma1") + product(64, "#mma"))
    assert found == "a product of 64 rows laid over 128"


def test_products_that_fit_are_not() -> None:
    small = product(16, "#mma2", "tt.dot")
    assert not overhang(LAYOUTS + product(128, "#mma") + product(64, "#mma1") + small)
    assert not overhang(LAYOUTS)
