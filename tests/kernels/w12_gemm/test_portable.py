"""The Triton kernel in its interpreter (tests/conftest.py). Memory that torch allocates is filled with NaN first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lossguard_kernels.w12_gemm import naive
from lossguard_kernels.w12_gemm.operation import q_linear, w12_linear
from tests.kernels.w12_gemm.kernel_weights import activations, assert_product, gaussian, packed, wild


@pytest.fixture(autouse=True)
def _poison() -> Iterator[None]:
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


@pytest.mark.parametrize(("rows", "columns", "m"), [(16, 64, 1), (40, 200, 5), (17, 70, 17), (32, 16, 3)])
def test_products_are_right(rows: int, columns: int, m: int) -> None:
    for weights in (gaussian(rows, columns), wild(rows, columns)):
        coded, x = packed(weights), activations(m, columns)
        found = w12_linear(x, coded, backend="triton")
        assert found.shape == (m, rows)
        assert_product(found, x, weights)


def test_the_high_plane_alone_and_a_bias() -> None:
    weights, x, bias = wild(40, 200), activations(5, 200), gaussian(1, 40, seed=5).view(-1)
    coded, with_one = packed(weights), torch.cat((x, x.new_ones(5, 1)), dim=1)
    found = q_linear(x, coded, bias, backend="triton")
    assert_product(found, with_one, torch.cat((naive.decode_hi(coded), bias[:, None]), dim=1))
    found = w12_linear(x, coded, bias, backend="triton")
    assert_product(found, with_one, torch.cat((weights, bias[:, None]), dim=1))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, where the interpreter adds infinities
def test_non_finite_weights() -> None:
    weights = gaussian(32, 64)
    weights[3, 5], weights[20, 6] = float("inf"), float("nan")
    x = activations(2, 64).abs() + 1
    found = w12_linear(x, packed(weights), backend="triton")
    assert bool(found[:, 3].isposinf().all())
    assert bool(found[:, 20].isnan().all())
    others = [row for row in range(32) if row not in (3, 20)]
    assert bool(found[:, others].isfinite().all())
