"""W12 in transformers: ``from_pretrained(..., quantization_config=W12Config())`` converts the linear layers it loads.

Importing this module registers both classes under the name ``w12``, by transformers' own functions for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from lossguard_mechanisms.weights.w12.fused_linear import fuse_linears
from lossguard_mechanisms.weights.w12.linear import W12Linear, replace_linears
from lossguard_mechanisms.weights.w12_plugins.converted_layer import NAME
from lossguard_mechanisms.weights.w12_plugins.failures import container_in_transformers, not_bfloat16, nothing_converted


@register_quantization_config(NAME)
@dataclass
class W12Config(QuantizationConfigMixin):
    """There are no settings: every bf16 ``nn.Linear`` gets W12, on a GPU with kernels, else decoded before products."""

    quant_method: Any = NAME  # transformers' own type lists its own methods
    version: int = 1  # of the format, as convert writes it


@register_quantizer(NAME)
class W12Quantizer(HfQuantizer):
    """Lets transformers load ordinary weights and replaces the linear layers afterwards, on the device where they are.

    ``left`` tells, by layer, why a linear layer was left in its type. A model on several devices is not covered.
    """

    left: dict[str, str]

    def __init__(self, quantization_config: W12Config, **kwargs: Any) -> None:
        """Raises UsageError LG1214 for a folder that convert has written."""
        super().__init__(quantization_config, **kwargs)
        if self.pre_quantized:
            raise container_in_transformers()
        self.left = {}

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """bfloat16 as asked for. Raises UsageError LG1215 for another type."""
        if dtype != torch.bfloat16:
            raise not_bfloat16(str(dtype).removeprefix("torch."))
        return dtype

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        """Convert. Raises UsageError LG1216 if the model holds no layer for it."""
        self.left = replace_linears(model)
        found = [layer for layer in model.modules() if isinstance(layer, W12Linear)]
        if not found:
            raise nothing_converted(self.left)
        if all(layer.coded.hi.is_cuda for layer in found):
            fuse_linears(model)
        return model

    def is_serializable(self) -> bool:
        """No: ``lossguard w12 convert`` writes files, with checksums."""
        return False

    @property
    def is_trainable(self) -> bool:
        """No: W12 has no gradient."""
        return False
