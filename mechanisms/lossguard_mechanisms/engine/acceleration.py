"""What of a step runs as a kernel of ours or as compiled code, and why."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch

from lossguard_mechanisms.targets.config import TargetConfig

_LEAST_TILE, _MOST_CHANNELS = 16, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceleration:
    """Off by default: torch's own operations everywhere."""

    has_kernels: bool = False
    """Attention over pages, delta layers of tokens and trees, and the growth of best-first trees, as Triton kernels."""
    is_compiled: bool = False
    """The arithmetic between matrix products through ``torch.compile``."""


def kernels_fit(config: TargetConfig, *, dtype: torch.dtype, device: torch.device) -> tuple[bool, str]:
    """(whether the kernels take this target, reason)."""
    if device.type != "cuda":
        return False, f"they are for CUDA devices, this is {device.type}"
    if importlib.util.find_spec("triton") is None:
        return False, "triton is not installed"
    if dtype not in (torch.bfloat16, torch.float16):
        return False, f"they multiply in 16 bits, this is {dtype}"
    if config.head_dim % _LEAST_TILE or config.head_dim > _MOST_CHANNELS:
        return False, f"heads of {config.head_dim} are no multiple of {_LEAST_TILE} up to {_MOST_CHANNELS}"
    if config.delta is not None and (config.delta.key_dim < _LEAST_TILE or config.delta.key_dim.bit_count() > 1):
        return False, f"key heads of {config.delta.key_dim} are no power of two from {_LEAST_TILE} on"
    if config.delta is not None and config.delta.value_dim % _LEAST_TILE:
        return False, f"value heads of {config.delta.value_dim} are no multiple of {_LEAST_TILE}"
    return True, "CUDA, 16 bits, and sizes that the tiles take"
