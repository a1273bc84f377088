"""W12 in SGLang: ``--quantization w12`` converts the linear layers and an untied head once they are loaded.

The folder is an ordinary one or one that ``lossguard w12 convert`` has written. SGLang finds ``register`` through its
entry points ``sglang.srt.plugins``. Embeddings, heads that are tied to them and experts stay in bf16.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from sglang.srt.layers import quantization as methods
from sglang.srt.layers.linear import LinearBase
from sglang.srt.layers.quantization.base_config import LinearMethodBase, QuantizationConfig
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.server_args import add_quantization_method_choices
from torch import Tensor, nn

from lossguard_mechanisms.weights.w12_plugins.converted_folder import dense_weights, is_converted
from lossguard_mechanisms.weights.w12_plugins.converted_layer import NAME
from lossguard_mechanisms.weights.w12_plugins.server_quantization import ConvertedMethod, ConvertingConfig

WEIGHTS = "sglang.srt.model_loader.loader.DefaultModelLoader._get_weights_iterator"


class W12Method(ConvertedMethod, LinearMethodBase):
    """``create_weights`` is the unquantized one: engines take subclasses of that method to have a weight."""

    create_weights = UnquantizedLinearMethod.create_weights


class W12Config(ConvertingConfig, QuantizationConfig):
    """What SGLang asks a quantization."""

    log = logging.getLogger("lossguard.w12")

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
