"""W12 in vLLM: ``--quantization w12`` converts the linear layers and the head once they are loaded.

vLLM finds ``register`` through its entry points ``vllm.general_plugins``. Embeddings and experts stay in bf16; a head
that is tied to an embedding is kept twice, dense for lookups and in W12 for the product.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from vllm.logger import init_logger
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader import DefaultModelLoader, register_model_loader

from lossguard_mechanisms.weights.w12_plugins.converted_folder import dense_weights, is_converted
from lossguard_mechanisms.weights.w12_plugins.converted_layer import NAME
from lossguard_mechanisms.weights.w12_plugins.server_quantization import ConvertedMethod, ConvertingConfig


class W12Method(ConvertedMethod, LinearMethodBase):
    """``create_weights`` is the unquantized one: engines take subclasses of that method to have a weight."""

    create_weights = UnquantizedLinearMethod.create_weights


class W12Config(ConvertingConfig, QuantizationConfig):
    """What vLLM asks a quantization."""

    log = init_logger("vllm.lossguard.w12")  # vLLM shows what is logged under its own name

    def get_quant_method(self, layer: nn.Module, prefix: str) -> W12Method | None:
        """W12 for linear layers and the head, None (bf16) for all others."""
        return W12Method(self.roll) if isinstance(layer, (LinearBase, ParallelLMHead)) else None


class W12Loader(DefaultModelLoader):
    """``--load-format w12``: a folder that ``lossguard w12 convert`` has written."""

    def _get_weights_iterator(self, source: Any) -> Any:
        if not is_converted(source.model_or_path):
            return super()._get_weights_iterator(source)
        return ((source.prefix + name, weight) for name, weight in dense_weights(source.model_or_path))


def register() -> None:
    """Make ``w12`` known to this process; may be called again."""
    register_model_loader(NAME)(W12Loader)
    register_quantization_config(NAME)(W12Config)
