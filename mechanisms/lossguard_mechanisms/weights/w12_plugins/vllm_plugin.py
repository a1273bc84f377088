"""W12 in vLLM: ``--quantization w12`` converts the linear layers and the head once they are loaded.

vLLM finds ``register`` through its entry points ``vllm.general_plugins``. Embeddings and experts stay in bf16; a head
that is tied to an embedding is kept twice, dense for lookups and in W12 for the product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.logger import init_logger
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader import DefaultModelLoader, register_model_loader

from lossguard_mechanisms.weights.w12_plugins.converted_folder import dense_weights, is_converted
from lossguard_mechanisms.weights.w12_plugins.converted_layer import NAME, RollCall, convert_layer, multiply

log = init_logger("vllm.lossguard.w12")  # vLLM shows what is logged under its own name


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
    """What vLLM asks a quantization: there are no settings."""

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
