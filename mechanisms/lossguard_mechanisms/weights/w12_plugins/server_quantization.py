"""What SGLang and vLLM ask alike of a quantization: their plug-ins mix these classes into the servers' own.

The servers' base classes come after these in the order of inheritance, and add what only they know.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from lossguard_mechanisms.weights.w12_plugins.converted_layer import NAME, RollCall, convert_layer, multiply


class ConvertedMethod:
    """Loads a layer as an unquantized one and multiplies from W12 afterwards."""

    def __init__(self, roll: RollCall) -> None:
        """``roll`` counts the layers of a model."""
        super().__init__()
        self.roll = roll

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Convert what was loaded, on the device where it is."""
        convert_layer(layer, self.roll)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [rows, inputs] in bf16 -> [rows, outputs]. Raises UsageError LG1704."""
        return multiply(layer, x, bias, self.roll)


class ConvertingConfig:
    """There are no settings. ``log`` is where the roll call of a model's layers is told."""

    log: ClassVar[logging.Logger]

    def __init__(self) -> None:
        """One roll call for the layers of one model."""
        super().__init__()
        self.roll = RollCall(self.log)

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
    def from_config(cls, config: dict[str, Any]) -> Self:
        """For a folder that convert has written; its record is what counts."""
        return cls()
