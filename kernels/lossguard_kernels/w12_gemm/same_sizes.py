"""Matrices of one shape whose arrays have one size, so that code that is compiled for one of them serves all.

Matrices differ in how many of their weights escape, and in whether a base per row was smaller. Compilers of models take
the sizes of weights as constants: each layer of a model would be a compilation of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from lossguard_kernels.w12_gemm.weights import BAND_ROWS, KernelWeights


def same_sizes(matrices: Sequence[KernelWeights]) -> list[KernelWeights]:
    """The same weights: escapes padded to the longest list, a base per row for all if one of them has that.

    Padding is read by no kernel, since every band knows where its escapes end. Returns when the device is done, as
    ``KernelWeights.pack`` does.
    """
    shapes = {(one.rows, one.columns) for one in matrices}
    assert len(shapes) <= 1, f"matrices of one shape, not of {sorted(shapes)}"
    num_escapes = max((one.escape_bits.numel() for one in matrices), default=0)
    num_bases = max((one.base.numel() for one in matrices), default=0)
    resized = [_resized(one, num_escapes, num_bases) for one in matrices]
    for device in {one.device for one in matrices if one.hi.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return resized


def _resized(matrix: KernelWeights, num_escapes: int, num_bases: int) -> KernelWeights:
    assert num_bases in (1, BAND_ROWS * matrix.num_bands), "one base, or one for every row"
    return dataclasses.replace(
        matrix,
        escape_place=_padded(matrix.escape_place, num_escapes),
        escape_bits=_padded(matrix.escape_bits, num_escapes),
        base=matrix.base if matrix.base.numel() == num_bases else matrix.base.repeat(num_bases),
    )


def _padded(array: Tensor, length: int) -> Tensor:
    return array if array.numel() == length else pad(array, (0, length - array.numel()))
