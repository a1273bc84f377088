"""The CUDA source itself, run on a CPU with the instructions of either architecture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import pad

from lossguard_kernels.w12_gemm import naive
from lossguard_kernels.w12_gemm.launching import problem_of
from lossguard_kernels.w12_gemm.variants import Launch, Variant
from tests.kernels.w12_gemm.cuda_emulator import EmulatedKernel
from tests.kernels.w12_gemm.kernel_weights import activations, assert_product, gaussian, packed, wild

pytestmark = pytest.mark.slow


def variant(x_rows: int, bands: int, warps: tuple[int, int], k_tiles: int, stages: int) -> Variant:
    return Variant(x_rows=x_rows, bands=bands, warps_n=warps[0], warps_k=warps[1], k_tiles=k_tiles, stages=stages)


CASES = {
    "one row, bulk copies, warps along k": (90, variant(1, 2, (1, 2), 2, 3), (80, 328), 1, (2, 1)),
    "slices and groups": (90, variant(8, 1, (2, 1), 1, 2), (100, 400), 5, (2, 3)),
    "older copies": (80, variant(8, 2, (2, 1), 2, 2), (100, 400), 8, (1, 3)),
    "16 rows, both kinds of warps": (90, variant(16, 1, (2, 2), 2, 2), (64, 192), 13, (1, 1)),
    "more stages than are on their way": (90, variant(8, 1, (1, 1), 1, 5), (48, 700), 3, (1, 1)),
    "32 rows": (80, variant(32, 2, (1, 2), 2, 2), (48, 320), 30, (1, 2)),
    "64 rows": (90, variant(64, 2, (1, 1), 1, 2), (48, 150), 64, (3, 2)),
}


@pytest.mark.parametrize("case", CASES)
def test_products_are_right(case: str, tmp_path: Path) -> None:
    architecture, form, (rows, columns), m, (parts, slices) = CASES[case]
    launch = Launch(variant=form, parts=parts, slices=slices)
    kernel = EmulatedKernel(launch, architecture, tmp_path)
    for weights in (gaussian(rows, columns), wild(rows, columns)):
        coded, x = packed(weights), activations(m, columns)
        whole = pad(x, (0, 64 * coded.num_tiles - columns))
        y = torch.full((m, 16 * coded.num_bands), float("nan"), dtype=torch.bfloat16)
        partials = torch.full((max(1, launch.partial_floats(coded.num_bands)),), float("nan"))
        for _ in range(2):
            kernel(problem_of(launch, coded, whole, y, partials))
            assert_product(y[:, :rows], x, weights)
            assert int(coded.counters.abs().sum()) == 0
            assert bool((y[:, rows:] == 0).all())
            y.fill_(float("nan"))


def test_the_high_plane_alone_and_a_bias(tmp_path: Path) -> None:
    form = Variant(x_rows=8, bands=1, warps_n=2, warps_k=1, k_tiles=2, stages=2, hi_only=True)
    launch = Launch(variant=form, parts=1, slices=2)
    weights, x = wild(32, 256), activations(3, 256)
    coded, bias = packed(weights), gaussian(1, 32, seed=5).view(-1)
    y = torch.full((3, 32), float("nan"), dtype=torch.bfloat16)
    partials = torch.full((launch.partial_floats(2),), float("nan"))
    problem = problem_of(launch, coded, x, y, partials)
    problem.bias = bias.data_ptr()
    EmulatedKernel(launch, 90, tmp_path)(problem)
    cut = torch.cat((naive.decode_hi(coded), bias[:, None]), dim=1)
    assert_product(y, torch.cat((x, x.new_ones(3, 1)), dim=1), cut)
