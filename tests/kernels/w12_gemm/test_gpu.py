"""The compiled kernel on a GPU. Memory that torch allocates is filled with NaN, so that what is not written shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn.functional import linear

from lossguard_kernels.w12_gemm import naive
from lossguard_kernels.w12_gemm.candidates import SLICES, variants_for
from lossguard_kernels.w12_gemm.launching import device_of
from lossguard_kernels.w12_gemm.operation import decode, fused_linear, q_linear, w12_linear
from lossguard_kernels.w12_gemm.variants import MAX_M, X_ROWS, Launch
from tests.kernels.w12_gemm.kernel_weights import activations, assert_product, gaussian, packed, wild

pytestmark = pytest.mark.gpu

SHAPES = [(16, 16), (48, 64), (592, 832), (1000, 1300), (4096, 448), (160, 8192)]


@pytest.fixture(autouse=True)
def _poison() -> Iterator[None]:
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decode_is_exact(shape: tuple[int, int]) -> None:
    for weights in (gaussian(*shape), wild(*shape)):
        coded = packed(weights, "cuda")
        assert torch.equal(decode(coded).cpu().view(torch.int16), weights.view(torch.int16))
        assert torch.equal(decode(coded, hi_only=True), naive.decode_hi(coded))


@pytest.mark.parametrize("m", [1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_product(shape: tuple[int, int], m: int) -> None:
    for weights in (gaussian(*shape), wild(*shape)):
        coded, x = packed(weights, "cuda"), activations(m, shape[1]).cuda()
        found = w12_linear(x, coded)
        if m > MAX_M:
            assert torch.equal(found, linear(x, weights.cuda()))
        else:
            assert coded.reason_against_fusing is None
            assert_product(found, x, weights.cuda())
        assert torch.equal(found, w12_linear(x, coded))
        assert int(coded.counters.abs().sum()) == 0


@pytest.mark.parametrize("x_rows", X_ROWS)
def test_every_form_of_the_kernel(x_rows: int) -> None:
    device = device_of(torch.cuda.current_device())
    weights, x = wild(592, 832), activations(x_rows, 832).cuda()
    coded = packed(weights, "cuda")
    for variant in variants_for(x_rows, device):
        for slices in SLICES:
            for parts in (1, min(37, device.num_multiprocessors // slices)):
                launch = Launch(variant=variant, parts=parts, slices=slices)
                for overlap in (False, True):
                    found = fused_linear(x, coded, launch=launch, overlap=overlap)
                    assert_product(found, x, weights.cuda())


@pytest.mark.parametrize("m", [1, 5, 32, 64])
def test_q_view_and_bias(m: int) -> None:
    weights, bias = wild(592, 832), gaussian(1, 592, seed=7).view(-1).cuda() * 100
    coded, x = packed(weights, "cuda"), activations(m, 832).cuda()
    assert_product(q_linear(x, coded), x, naive.decode_hi(coded))
    with_bias = torch.cat((weights.cuda(), bias[:, None]), dim=1)
    assert_product(w12_linear(x, coded, bias), torch.cat((x, x.new_ones(m, 1)), dim=1), with_bias)


def test_non_finite_weights() -> None:
    weights = gaussian(64, 256)
    weights[3, 5], weights[20, 200], weights[40, 7], weights[40, 9] = (
        float("inf"),
        float("-inf"),
        float("nan"),
        float("inf"),
    )
    x = activations(6, 256).abs().cuda() + 1
    for m in (1, 6):
        found, expected = w12_linear(x[:m], packed(weights, "cuda")), x[:m].double() @ weights.cuda().double().T
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.isposinf(), expected.isposinf())
        assert torch.equal(found.isneginf(), expected.isneginf())
        finite = expected.isfinite()
        assert torch.allclose(found[finite].double(), expected[finite], rtol=2**-8, atol=1e-3)


def test_views_and_leading_dimensions() -> None:
    weights = gaussian(96, 320)
    coded = packed(weights, "cuda")
    wide = activations(12, 700).cuda()
    for x in (wide[:, 3:323], wide[::2, :320], wide[:, :320].view(3, 4, 320)):
        found = w12_linear(x, coded)
        assert_product(found.reshape(-1, 96), x.reshape(-1, 320), weights.cuda())


@pytest.mark.parametrize("m", [1, 16, 32])
def test_graphs_and_compile(m: int) -> None:
    weights = [wild(592, 832, seed=seed) for seed in range(3)]
    coded, x = [packed(one, "cuda") for one in weights], activations(m, 832).cuda()

    def run(given: torch.Tensor) -> list[torch.Tensor]:
        return [w12_linear(given, one) for one in coded]

    expected = run(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(x)
    for _ in range(3):
        graph.replay()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")(x)
    for one, from_graph, from_compile in zip(expected, captured, compiled, strict=True):
        assert torch.equal(one, from_graph)
        assert torch.equal(one, from_compile)


def test_a_product_waits_for_its_input() -> None:
    """Kernels overlap at their ends; x must still be what the kernel before wrote."""
    weights = gaussian(2048, 2048)
    coded = packed(weights * 2.0, "cuda")
    x = activations(4, 2048).cuda()
    expected, found = x, x
    for _ in range(40):
        expected = torch.nn.functional.normalize(fused_linear(expected, coded, overlap=False))
        torch.cuda.synchronize()
    for _ in range(40):
        found = torch.nn.functional.normalize(fused_linear(found, coded))
    chained = x
    for _ in range(3):
        chained = fused_linear(chained, coded)
    alone = x
    for _ in range(3):
        alone = fused_linear(alone, coded, overlap=False)
        torch.cuda.synchronize()
    assert torch.equal(found, expected)
    assert torch.equal(chained, alone)
