"""W12 in SGLang: ``--quantization w12`` converts the linear layers and an untied head once they are loaded.

The folder is an ordinary one or one that ``lossguard w12 convert`` has written. SGLang finds ``register`` through its
entry points ``sglang.srt.plugins``. Embeddings, heads that are tied to them and experts stay in bf16.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from sglang.srt.layers import quantization as methods
from sglang.srt.layers.linear import LinearBase
from sglang.srt.layers.quantization.base_config import LinearMethodBase, QuantizationConfig
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.server_args import add_quantization_method_choices
from torch import Tensor, nn

from lossguard_mechanisms.weights.w12_plugins.converted_folder import dense_weights, is_converted
from lossguard_mechanisms.weights.w12_plugins.converted_layer import NAME, RollCall, convert_layer, multiply

log = logging.getLogger("lossguard.w12")
WEIGHTS = "sglang.srt.model_loader.loader.DefaultModelLoader._get_weights_iterator"


class W12Method(LinearMethodBase):
    """Loads a layer as an unquantized one and multiplies from W12 afterwards."""

    def __init__(self, roll: RollCall) -> None:
        """``roll`` counts the layers of a model."""
        super().__init__()
        self.roll = roll

    create_weights = UnquantizedLinearMethod.create_weights  # no subclass of it: engines take those to have a weight

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Convert what was loaded, on the device where it is."""
        convert_layer(layer, self.roll)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [rows, inputs] in bf16 -> [rows, outputs]. Raises UsageError LG1704."""
        return multiply(layer, x, bias, self.roll)


class W12Config(QuantizationConfig):
    """What SGLang asks a quantization: there are no settings."""

    def __init__(self) -> None:
        """One roll call for the layers of one model."""
        super().__init__()
        self.roll = RollCall(log)

    def get_name(self) -> str:
        """The value of ``--quantization``."""
        return NAME

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """bfloat16 alone: W12 holds nothing else."""
        return [torch.bfloat16]

    @classmethod
    def get_min_capability(cls) -> int:
        """Compute capability 8.0, as the kernels need."""
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        """None: weights are converted while they are loaded."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> W12Config:
        """For a folder that convert has written; its record is what counts."""
        return cls()

    def get_quant_method(self, layer: nn.Module, prefix: str) -> W12Method | None:
        """W12 for linear layers and heads of their own, None (bf16) for all others."""
        return W12Method(self.roll) if isinstance(layer, (LinearBase, ParallelLMHead)) else None

    def get_scaled_act_names(self) -> list[str]:
        """None."""
        return []


def weights_of(original: Callable[..., Iterator[tuple[str, Tensor]]], loader: Any, source: Any) -> Any:
    """What SGLang's loader reads of a folder, or the decoded weights of one that convert has written."""
    folder = source.model_or_path
    return dense_weights(folder) if is_converted(folder) else original(loader, source)


def register() -> None:
    """Make ``w12`` known to this process."""
    HookRegistry.register(WEIGHTS, weights_of, HookType.AROUND)
    methods.QUANTIZATION_METHODS[NAME] = W12Config
    methods.CPU_QUANTIZATION_METHODS[NAME] = W12Config
    add_quantization_method_choices([NAME])
