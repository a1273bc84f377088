# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Products whose results are those of float32, on tensor cores.

bfloat16 operands are exact as they are. A float32 operand is cut into three bfloat16 parts, which hold all its 24 bits,
so that its products with bfloat16 are exact too and only sums round; or into two of tf32, 22 bits, where that is
enough. Two float32 operands take three products of tf32.
Tensor cores round their sums towards zero, so that what lives on for many rounds is added outside (``commit_kernel``).

A branch on a constant ends in ``else``: some versions of Triton compile what stands behind a ``return`` too.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _first_bits(x):
    """float32 cut to the bits of tf32, still in float32."""
    return (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def products(a, b):
    """Of two float32 operands: errors of about 2^-22. As ``tf32x3``, without its tests of every entry for NaN."""
    a_first, b_first = _first_bits(a), _first_bits(b)
    found = tl.dot(a - a_first, b_first, input_precision="tf32")
    found = tl.dot(a_first, b - b_first, found, input_precision="tf32")
    return tl.dot(a_first, b_first, found, input_precision="tf32")


@triton.jit
def pair_products(a, b, acc, WIDE: tl.constexpr, CAST: tl.constexpr):
    """``acc + a b`` of inputs as they come: exact products where they are bfloat16."""
    if WIDE or CAST:
        found = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="tf32x3")
    else:
        found = tl.dot(a, b, acc)
    return found


@triton.jit
def upper_part(x):
    """float32 cut to the bits of bfloat16, still in float32."""
    return (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def in_two_parts(a, b, acc, WIDE: tl.constexpr, CAST: tl.constexpr):
    """``acc + a b`` of an input as it comes and a float32 operand in two parts of tf32: 22 of its 24 bits."""
    if WIDE or CAST:
        found = tl.dot(a.to(tl.float32), b, acc, input_precision="tf32x3")
    else:
        upper = _first_bits(b)
        found = tl.dot(a.to(tl.float32), b - upper, acc, input_precision="tf32")
        found = tl.dot(a.to(tl.float32), upper, found, input_precision="tf32")
    return found


@triton.jit
def part_products(a, b, acc, CAST: tl.constexpr):
    """``acc + a b`` of bfloat16 ``a`` with one part of a float32 operand."""
    return tl.dot(a.to(tl.float32), b, acc) if CAST else tl.dot(a, b.to(tl.bfloat16), acc)


@triton.jit
def mixed_products(a, b, acc, WIDE: tl.constexpr, CAST: tl.constexpr):
    """``acc + a b`` of an input as it comes and a float32 operand; the smallest part is added first."""
    if WIDE:
        found = tl.dot(a.to(tl.float32), b, acc, input_precision="tf32x3")
    else:
        upper = upper_part(b)
        middle = upper_part(b - upper)
        found = part_products(a, b - upper - middle, acc, CAST)
        found = part_products(a, middle, found, CAST)
        found = part_products(a, upper, found, CAST)
    return found
