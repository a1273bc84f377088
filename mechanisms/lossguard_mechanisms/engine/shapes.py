"""Shapes of released models, and targets and drafters of those shapes with random weights: for times only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch

from lossguard_mechanisms.drafters.config import DrafterConfig
from lossguard_mechanisms.drafters.fresh import AnyDrafter, drafter_of
from lossguard_mechanisms.targets.config import ATTENTION, DELTA, DeltaShape, TargetConfig
from lossguard_mechanisms.targets.decoder import Target

Module = TypeVar("Module", bound=torch.nn.Module)

QWEN3_8B = TargetConfig(
    model_type="qwen3",
    vocab_size=151_936,
    hidden_size=4096,
    intermediate_size=12_288,
    layer_types=(ATTENTION,) * 36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    rotary_dim=128,
    rope_theta=1e6,
    rms_norm_eps=1e-6,
    max_position_embeddings=40_960,
    tie_word_embeddings=False,
    delta=None,
)
QWEN35_4B = TargetConfig(
    model_type="qwen3_5_text",
    vocab_size=248_320,
    hidden_size=2560,
    intermediate_size=9216,
    layer_types=(DELTA, DELTA, DELTA, ATTENTION) * 8,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=256,
    rotary_dim=64,
    rope_theta=1e7,
    rms_norm_eps=1e-6,
    max_position_embeddings=262_144,
    tie_word_embeddings=True,
    delta=DeltaShape(num_key_heads=16, num_value_heads=32, key_dim=128, value_dim=128, conv_width=4),
)
TINY = TargetConfig(
    model_type="qwen3_5_text",
    vocab_size=4096,
    hidden_size=64,
    intermediate_size=96,
    layer_types=(DELTA, DELTA, DELTA, ATTENTION) * 2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    rotary_dim=8,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
    delta=DeltaShape(num_key_heads=2, num_value_heads=4, key_dim=32, value_dim=32, conv_width=4),
)
"""No released model's: to try a benchmark out where there is no accelerator."""
TARGETS: Mapping[str, TargetConfig] = {"qwen3-8b": QWEN3_8B, "qwen3.5-4b": QWEN35_4B, "tiny": TINY}

_FEATURES = {"qwen3-8b": (1, 9, 17, 25, 33), "qwen3.5-4b": (1, 8, 15, 22, 29), "tiny": (1, 2, 4, 5, 6)}
_DRAFTER_WIDTHS = {"qwen3-8b": 12_288, "qwen3.5-4b": 9728, "tiny": 96}


def drafter_shape(shape: str, *, num_depths: int) -> DrafterConfig:
    """DFlash2 as released for such targets: five layers, 32 over 8 heads of 128, a selector of rank 256.

    For ``tiny`` everything is small.
    """
    is_tiny = shape == "tiny"
    return DrafterConfig(
        name="dflash2",
        num_depths=num_depths,
        feature_layers=_FEATURES[shape],
        num_layers=5,
        intermediate_size=_DRAFTER_WIDTHS[shape],
        num_attention_heads=4 if is_tiny else 32,
        num_key_value_heads=2 if is_tiny else 8,
        head_dim=32 if is_tiny else 128,
        mask_token_id=TARGETS[shape].vocab_size - 1,
        rank=32 if is_tiny else 256,
        conv_groups=16,
    )


def target_of_shape(config: TargetConfig, *, dtype: torch.dtype, device: torch.device) -> Target:
    """A target with small random weights, made on the device."""
    return _made(lambda: Target(config), dtype, device)


def drafter_of_shape(config: DrafterConfig, target: Target) -> AnyDrafter:
    """A drafter with small random weights, made on its target's device."""
    weight = target.embedding.weight
    return _made(lambda: drafter_of(config, target), weight.dtype, weight.device)


def _made(make: Callable[[], Module], dtype: torch.dtype, device: torch.device) -> Module:
    with torch.device(device), _default_dtype(dtype), torch.no_grad():
        module = make()
        for parameter in module.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.02)
    return module.eval().requires_grad_(requires_grad=False)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
