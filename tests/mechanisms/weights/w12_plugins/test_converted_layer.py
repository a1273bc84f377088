"""What a server's layer becomes: its products stay, its dense weights go, and the log tells when all have run."""

from __future__ import annotations

import gc
import logging

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from lossguard.errors import UsageError
from lossguard_mechanisms.weights.w12.linear import W12Linear
from lossguard_mechanisms.weights.w12_plugins.converted_layer import NAME, RollCall, convert_layer, multiply
from tests.mechanisms.weights.w12.toy_weights import bf16_of, gaussian

LOG = logging.getLogger("lossguard.w12.test")


class ServerLayer(nn.Module):
    """As servers make them: a parameter, and a prefix that names the layer."""

    def __init__(self, weight: torch.Tensor, prefix: str = "layers.0.mlp") -> None:
        super().__init__()
        self.prefix = prefix
        self.weight = nn.Parameter(weight, requires_grad=False)


def test_a_converted_layer_multiplies_as_before_and_has_no_dense_weights() -> None:
    weight, x, bias = gaussian(48, 80), gaussian(3, 80, seed=1), gaussian(48, seed=2)
    layer, roll = ServerLayer(weight.clone()), RollCall(LOG)
    convert_layer(layer, roll)
    assert torch.equal(multiply(layer, x, bias, roll), linear(x, weight, bias))
    assert torch.equal(multiply(layer, x, None, roll), linear(x, weight))
    assert isinstance(getattr(layer, NAME), W12Linear)
    assert not hasattr(layer, "weight")
    assert layer.state_dict().keys() == {f"{NAME}.{name}" for name in getattr(layer, NAME).state_dict()}


def test_a_weight_that_does_not_fit_stays_and_is_named() -> None:
    wild = bf16_of(torch.arange(32 * 48) * 37 % 65536).view(32, 48)
    layer, roll = ServerLayer(wild), RollCall(LOG)
    convert_layer(layer, roll)
    assert layer.weight is not None
    assert roll.num_converted == 0
    assert "layers.0.mlp (raw: " in str(roll)
    x = gaussian(2, 48)
    with pytest.raises(UsageError, match="no layer of the model was converted") as caught:
        multiply(layer, x, None, roll)
    assert caught.value.code == "LG1216"
    convert_layer(ServerLayer(gaussian(16, 48), "layers.1.mlp"), roll)
    torch.testing.assert_close(multiply(layer, x, None, roll), linear(x, wild), equal_nan=True, rtol=0, atol=0)


def test_the_log_says_once_that_every_layer_has_multiplied(caplog: pytest.LogCaptureFixture) -> None:
    roll = RollCall(LOG)
    first, second = ServerLayer(gaussian(16, 32)), ServerLayer(gaussian(48, 32, seed=1))
    for layer in (first, second):
        convert_layer(layer, roll)
    x = gaussian(1, 32, seed=2)
    with caplog.at_level(logging.INFO, logger=LOG.name):
        multiply(first, x, None, roll)
        multiply(first, x, None, roll)
        assert caplog.messages == []
        multiply(second, x, None, roll)
        multiply(second, x, None, roll)
    (message,) = caplog.messages
    assert message.startswith("lossguard w12: 2 layers, 2,048 weights, ")
    assert message.endswith("every one has multiplied")


@pytest.mark.gpu
def test_a_gpu_gets_the_memory_back() -> None:
    """12.02 bits a weight stay of 16: one dense weight of the eight, kept, would be two more."""
    layers, roll = [ServerLayer(gaussian(4096, 4096, seed=seed).cuda()) for seed in range(8)], RollCall(LOG)
    x = gaussian(2, 4096).cuda()
    expected = linear(x, layers[0].weight)  # makes cuBLAS's workspace too, before anything is counted
    gc.collect()  # what other tests left behind
    torch.cuda.empty_cache()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for layer in layers:
        convert_layer(layer, roll)
    torch.cuda.empty_cache()
    num_dense = 2 * roll.num_weights
    assert num_dense == 8 * 4096 * 4096 * 2
    num_kept = torch.cuda.memory_allocated() - (allocated - num_dense)
    unsplit = 2**20 * len(layers)  # the allocator leaves up to 1 MiB at the end of a block: half a bit in all
    assert 12 / 16 * num_dense <= num_kept <= 12.02 / 16 * num_dense + unsplit
    assert torch.cuda.memory_reserved() < reserved
    torch.testing.assert_close(multiply(layers[0], x, None, roll), expected, rtol=2e-2, atol=1e-3)
