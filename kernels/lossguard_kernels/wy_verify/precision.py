# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Products whose results are those of float32, on tensor cores.

bfloat16 operands are exact as they are. A float32 operand is cut into three bfloat16 parts, which hold all its 24 bits,
so that its products with bfloat16 are exact too and only sums round. Two float32 operands take three products of tf32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def products(a, b):
    """Of two float32 operands: errors of about 2^-22."""
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def pair_products(a, b, acc, WIDE: tl.constexpr, CAST: tl.constexpr):
    """``acc + a b`` of inputs as they come: exact products where they are bfloat16."""
    if WIDE or CAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="tf32x3")
    return tl.dot(a, b, acc)


@triton.jit
def upper_part(x):
    """float32 cut to the bits of bfloat16, still in float32."""
    return (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def part_products(a, b, acc, CAST: tl.constexpr):
    """``acc + a b`` of bfloat16 ``a`` with one part of a float32 operand."""
    if CAST:
        return tl.dot(a.to(tl.float32), b, acc)
    return tl.dot(a, b.to(tl.bfloat16), acc)


@triton.jit
def mixed_products(a, b, acc, WIDE: tl.constexpr, CAST: tl.constexpr):
    """``acc + a b`` of an input as it comes and a float32 operand; the smallest part is added first."""
    if WIDE:
        return tl.dot(a.to(tl.float32), b, acc, input_precision="tf32x3")
    upper = upper_part(b)
    middle = upper_part(b - upper)
    acc = part_products(a, b - upper - middle, acc, CAST)
    acc = part_products(a, middle, acc, CAST)
    return part_products(a, upper, acc, CAST)
