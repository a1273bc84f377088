"""The operation of torch: what it takes, what it refuses, and that compilers see through it."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from lossguard.errors import UsageError
from lossguard_kernels.w12_gemm.operation import decode, q_linear, w12_linear
from tests.kernels.w12_gemm.kernel_weights import activations, assert_product, gaussian, packed, wild


@pytest.mark.parametrize("m", [1, 5, 70])
def test_on_a_cpu_it_is_linear_of_the_decoded_weights(m: int) -> None:
    weights, bias = wild(40, 200), gaussian(1, 40).view(-1)
    coded, x = packed(weights), activations(m, 200)
    assert torch.equal(decode(coded).view(torch.int16), weights.view(torch.int16))
    assert torch.equal(w12_linear(x, coded, bias), linear(x, weights, bias))


def test_leading_dimensions_stay() -> None:
    weights, x = gaussian(40, 200), activations(6, 200)
    found = w12_linear(x.view(2, 3, 200), packed(weights))
    assert found.shape == (2, 3, 40)
    assert_product(found.view(6, 40), x, weights)
    assert q_linear(x[0], packed(weights)).shape == (40,)
    assert w12_linear(x[:0], packed(weights)).shape == (0, 40)


def test_it_compiles_without_a_break() -> None:
    coded, x = packed(gaussian(40, 200)), activations(3, 200)

    def double(given: torch.Tensor) -> torch.Tensor:
        return w12_linear(given, coded) * 2

    assert torch.equal(torch.compile(double, fullgraph=True, backend="aot_eager")(x), double(x))


def test_torch_finds_nothing_wrong_with_it() -> None:
    coded, x = packed(gaussian(20, 70)), activations(3, 70)
    arguments = (x, list(coded.tensors().values()), None, 20, 70, "decode", False)
    torch.library.opcheck(torch.ops.lossguard.w12_linear.default, arguments)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(2, 200), "it is float32"),
        (activations(2, 199), r"\[2, 199\], the weights have 200"),
        (torch.empty(2, 200, dtype=torch.bfloat16, device="meta"), "it is on meta"),
        (torch.tensor(1.0, dtype=torch.bfloat16), r"its shape is \[\]"),
    ],
)
def test_another_x_is_refused(x: torch.Tensor, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        w12_linear(x, packed(gaussian(40, 200)))
    assert caught.value.code == "LG1704"


def test_another_bias_is_refused() -> None:
    with pytest.raises(UsageError, match="bias") as caught:
        w12_linear(activations(2, 200), packed(gaussian(40, 200)), torch.zeros(40))
    assert caught.value.code == "LG1704"
