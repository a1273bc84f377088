"""Matrices of one shape get arrays of one size, and stay what they are."""

from __future__ import annotations

import pytest
import torch

from lossguard_kernels.w12_gemm import naive
from lossguard_kernels.w12_gemm.operation import w12_linear
from lossguard_kernels.w12_gemm.same_sizes import same_sizes
from lossguard_kernels.w12_gemm.weights import KernelWeights
from tests.kernels.w12_gemm.kernel_weights import activations, assert_product, gaussian, packed, wild

ROWS, COLUMNS = 40, 200


def matrices() -> list[torch.Tensor]:
    """No escape, a few, and many with a base per row."""
    few = gaussian(ROWS, COLUMNS, seed=3)
    few[5, 7:10] = 2.0**-90
    plain = torch.full((ROWS, COLUMNS), 0.5, dtype=torch.bfloat16)
    return [plain, few, wild(ROWS, COLUMNS)]


def sizes(matrix: KernelWeights) -> list[tuple[int, ...]]:
    return [tuple(array.shape) for array in matrix.tensors().values()]


def test_sizes_are_equal_and_every_bit_stays() -> None:
    dense = matrices()
    before = [packed(weights) for weights in dense]
    assert len({tuple(sizes(one)) for one in before}) == len(before)
    after = same_sizes(before)
    assert len({tuple(sizes(one)) for one in after}) == 1
    for weights, one, same in zip(dense, before, after, strict=True):
        assert torch.equal(naive.decode(same).view(torch.int16), weights.view(torch.int16))
        assert torch.equal(naive.decode_hi(same), naive.decode_hi(one))
        assert same.reason_against_fusing == one.reason_against_fusing
        assert same.num_bytes == one.num_bytes + same.base.numel() - one.base.numel()


@pytest.mark.parametrize("backend", ["decode", "triton"])
def test_products_are_right(backend: str) -> None:
    x = activations(3, COLUMNS)
    for weights, matrix in zip(matrices(), same_sizes([packed(one) for one in matrices()]), strict=True):
        assert_product(w12_linear(x, matrix, backend=backend), x, weights)


def test_equal_sizes_cost_nothing() -> None:
    (one,) = same_sizes([packed(gaussian(ROWS, COLUMNS))])
    (again,) = same_sizes([one])
    assert again.escape_bits.data_ptr() == one.escape_bits.data_ptr()
    assert same_sizes([]) == []


def test_other_shapes_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="one shape"):
        same_sizes([packed(gaussian(16, 64)), packed(gaussian(16, 80))])


@pytest.mark.gpu
@pytest.mark.parametrize("m", [1, 8, 32, 64])
def test_on_a_gpu_products_are_those_of_the_single_matrices(m: int) -> None:
    """Padding and repeated bases change no bit of what the fused kernel and the decoder give."""
    before = [packed(weights, "cuda") for weights in matrices()]
    x = activations(m, COLUMNS).cuda()
    for one, same in zip(before, same_sizes(before), strict=True):
        for backend in ("fused", "decode"):
            assert torch.equal(w12_linear(x, same, backend=backend), w12_linear(x, one, backend=backend))
