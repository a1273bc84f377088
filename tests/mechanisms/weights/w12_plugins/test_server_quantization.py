"""What both servers' plug-ins are made of, mixed into stand-ins for the servers' own classes."""

from __future__ import annotations

import abc
import logging
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from lossguard_mechanisms.weights.w12_plugins.converted_layer import NAME, RollCall
from lossguard_mechanisms.weights.w12_plugins.server_quantization import ConvertedMethod, ConvertingConfig
from tests.mechanisms.weights.w12.toy_weights import gaussian

LOG = logging.getLogger("lossguard.w12.test")


class ServerMethodBase(abc.ABC):
    """As servers have it: what a layer is asked."""

    @abc.abstractmethod
    def create_weights(self, layer: nn.Module, *sizes: int) -> None: ...

    @abc.abstractmethod
    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor: ...

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        raise AssertionError("the plug-in's own comes first")


class ServerConfigBase(abc.ABC):
    """As servers have it: abstract, and with state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.packed_modules_mapping: dict[str, list[str]] = {}

    @abc.abstractmethod
    def get_name(self) -> str: ...

    @classmethod
    @abc.abstractmethod
    def from_config(cls, config: dict[str, Any]) -> ServerConfigBase: ...


class Method(ConvertedMethod, ServerMethodBase):
    def create_weights(self, layer: nn.Module, *sizes: int) -> None:
        layer.weight = nn.Parameter(gaussian(*sizes), requires_grad=False)


class Config(ConvertingConfig, ServerConfigBase):
    log = LOG


def test_a_layer_goes_through_its_life() -> None:
    layer, method = nn.Module(), Method(RollCall(LOG))
    method.create_weights(layer, 48, 80)
    assert isinstance(layer.weight, nn.Parameter)
    weight, x = layer.weight.clone(), gaussian(3, 80, seed=1)
    method.process_weights_after_loading(layer)
    assert not hasattr(layer, "weight")
    assert hasattr(layer, NAME)
    assert torch.equal(method.apply(layer, x), linear(x, weight))


def test_the_server_s_own_state_is_made_too() -> None:
    config = Config.from_config({"quant_method": "w12"})
    assert type(config) is Config
    assert config.packed_modules_mapping == {}
    assert config.get_name() == NAME
    assert config.get_supported_act_dtypes() == [torch.bfloat16]
    assert config.get_config_filenames() == []
    assert config.get_min_capability() == 80


def test_every_model_has_a_roll_call_of_its_own() -> None:
    assert Config().roll is not Config().roll
    assert Config().roll.log is LOG
