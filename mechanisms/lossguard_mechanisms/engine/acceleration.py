"""What of a step runs as a kernel of ours or as compiled code, and why."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch

from lossguard_mechanisms.targets.config import TargetConfig

_LEAST_TILE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceleration:
    """Off by default: torch's own operations everywhere."""

    has_kernels: bool = False
    """Attention over pages and single tokens through the delta rule as Triton kernels."""
    is_compiled: bool = False
    """The arithmetic between matrix products through ``torch.compile``."""


def kernels_fit(config: TargetConfig, *, page_size: int, dtype: torch.dtype, device: torch.device) -> tuple[bool, str]:
    """(whether the kernels take this target, reason)."""
    sizes = [page_size, config.head_dim]
    sizes += [] if config.delta is None else [config.delta.key_dim]
    if device.type != "cuda":
        return False, f"they are for CUDA devices, this is {device.type}"
    if importlib.util.find_spec("triton") is None:
        return False, "triton is not installed"
    if dtype not in (torch.bfloat16, torch.float16):
        return False, f"they multiply in 16 bits, this is {dtype}"
    if any(size < _LEAST_TILE or size & (size - 1) for size in sizes):
        return False, f"page, head and key sizes {sizes} are not all powers of two from {_LEAST_TILE} on"
    if config.delta is not None and config.delta.value_dim % _LEAST_TILE:
        return False, f"value heads of {config.delta.value_dim} are no multiple of {_LEAST_TILE}"
    return True, "CUDA, 16 bits, and sizes that the tiles take"
