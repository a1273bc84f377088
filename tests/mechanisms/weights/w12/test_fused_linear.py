"""Layers for the kernels hold the weights of the layers that they replace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lossguard_mechanisms.weights.w12.fused_linear import FusedW12Linear, fuse_linears
from lossguard_mechanisms.weights.w12.linear import W12Linear, replace_linears
from tests.mechanisms.weights.w12.toy_weights import gaussian


def bf16_linear(inputs: int, outputs: int, *, bias: bool = False) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias, dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.copy_(gaussian(outputs, inputs))
    return layer


@pytest.mark.parametrize("bias", [False, True])
def test_outputs_on_a_cpu_are_equal_in_every_bit(*, bias: bool) -> None:
    layer = bf16_linear(144, 20, bias=bias)
    for source in (layer, W12Linear.from_linear(layer)):
        fused = FusedW12Linear.from_linear(source)
        assert torch.equal(fused.weight.view(torch.int16), layer.weight.detach().view(torch.int16))
        batch = gaussian(2, 5, 144, scale=1.0)
        assert torch.equal(fused(batch).view(torch.int16), layer(batch).detach().view(torch.int16))
        assert not fused(batch).requires_grad


def test_layers_of_a_model_are_replaced_and_reasons_are_told() -> None:
    model = nn.Sequential(bf16_linear(64, 96), nn.Sequential(bf16_linear(96, 64)), bf16_linear(64, 32))
    with torch.no_grad():
        tiny = model.get_submodule("2").weight
        assert isinstance(tiny, torch.Tensor)
        tiny.mul_(2.0**-60)
        tiny[0, 0] = 1.0
    batch = gaussian(3, 64, scale=1.0)
    expected = model(batch)
    replace_linears(model)
    left = fuse_linears(model)
    assert {name for name, layer in model.named_modules() if isinstance(layer, FusedW12Linear)} == {"0", "1.0", "2"}
    assert list(left) == ["2"]
    assert "base" in left["2"]
    assert torch.equal(model(batch), expected)


def test_a_cast_of_the_model_leaves_the_planes_alone() -> None:
    layer = FusedW12Linear.from_linear(bf16_linear(64, 48))
    before = layer.weight
    layer.to(torch.float32)
    assert torch.equal(layer.weight.view(torch.int16), before.view(torch.int16))
    assert "64, 48, backend=auto" in repr(layer)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 32, 100])
def test_on_a_gpu_it_is_close(rows: int) -> None:
    layer = bf16_linear(640, 320, bias=True)
    fused, batch = FusedW12Linear.from_linear(layer).cuda(), gaussian(rows, 640, scale=1.0)
    assert layer.bias is not None
    expected = batch.double() @ layer.weight.double().T + layer.bias.double()
    assert torch.allclose(fused(batch.cuda()).cpu().double(), expected, rtol=2**-8, atol=1e-5)
