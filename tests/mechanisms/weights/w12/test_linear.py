"""Layers in W12 give the bits that nn.Linear gives."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from lossguard.errors import UsageError
from lossguard_mechanisms.weights.w12.codec import encode
from lossguard_mechanisms.weights.w12.linear import W12Linear, replace_linears
from tests.mechanisms.weights.w12.toy_weights import gaussian


def bf16_linear(inputs: int, outputs: int, *, bias: bool = False) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias, dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.copy_(gaussian(outputs, inputs))
    return layer


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs", "rows"), [(64, 48, 1), (144, 20, 5), (70, 33, 32)])
def test_outputs_are_equal_in_every_bit(*, bias: bool, inputs: int, outputs: int, rows: int) -> None:
    layer = bf16_linear(inputs, outputs, bias=bias)
    coded = W12Linear.from_linear(layer)
    assert torch.equal(coded.weight.view(torch.int16), layer.weight.detach().view(torch.int16))
    batch = gaussian(2, rows, inputs, scale=1.0)
    assert torch.equal(coded(batch).view(torch.int16), layer(batch).detach().view(torch.int16))
    assert not coded(batch).requires_grad


class Special(nn.Linear):
    """Does more than a product."""


def toy_model() -> nn.Module:
    layers: list[tuple[str, nn.Module]] = [
        ("embed", nn.Embedding(10, 64, dtype=torch.bfloat16)),
        ("up", bf16_linear(64, 96)),
        ("inner", nn.Sequential(bf16_linear(96, 64), nn.SiLU())),
        ("single", nn.Linear(64, 64)),
        ("special", Special(64, 64, dtype=torch.bfloat16)),
    ]
    return nn.Sequential(OrderedDict(layers))


def test_linear_layers_of_a_model_are_replaced() -> None:
    model = toy_model()
    left = replace_linears(model)
    assert left == {"single": "its weights are float32", "special": "it is a Special"}
    replaced = {name for name, module in model.named_modules() if isinstance(module, W12Linear)}
    assert replaced == {"up", "inner.0"}
    assert "up.weight_w12_hi" in model.state_dict()


def test_a_layer_with_too_many_escapes_stays() -> None:
    model = nn.Sequential(bf16_linear(64, 96), bf16_linear(96, 64))
    wild = model.get_submodule("1").weight
    assert isinstance(wild, torch.Tensor)
    with torch.no_grad():
        wild[:, ::2] *= 2.0**40
    left = replace_linears(model)
    assert list(left) == ["1"]
    assert "would escape" in left["1"]
    assert type(model.get_submodule("1")) is nn.Linear


def test_a_single_layer_that_is_the_model_stays() -> None:
    layer = bf16_linear(16, 16)
    assert replace_linears(layer) == {}


def test_stored_weights_are_taken() -> None:
    model = toy_model()
    stored = encode(gaussian(96, 64, seed=9))
    replace_linears(model, {"up.weight": stored})
    up = dict(model.named_children())["up"]
    assert isinstance(up, W12Linear)
    assert up.coded.hi.data_ptr() == stored.hi.data_ptr()


def test_a_state_dict_restores_the_layer() -> None:
    layer = bf16_linear(64, 48, bias=True)
    first, second = W12Linear.from_linear(layer), W12Linear.from_linear(layer)
    second.coded.hi.zero_()
    assert not torch.equal(second.weight, layer.weight)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.weight, layer.weight)


def test_casting_a_model_leaves_the_planes_alone() -> None:
    layer = W12Linear.from_linear(bf16_linear(64, 48))
    before = layer.weight
    layer.to(torch.float32)
    assert torch.equal(layer.weight.view(torch.int16), before.view(torch.int16))


def test_another_dtype_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        W12Linear.from_linear(nn.Linear(16, 16))
    assert caught.value.code == "LG1201"


def test_it_shows_its_size() -> None:
    assert "64, 48, bits_per_weight=12." in repr(W12Linear.from_linear(bf16_linear(64, 48)))
