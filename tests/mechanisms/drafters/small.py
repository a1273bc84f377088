"""Small targets and drafters with random weights, large enough that every part of them matters."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lossguard_mechanisms.drafters.config import DrafterConfig, config_for
from lossguard_mechanisms.drafters.fresh import AnyDrafter, random_drafter
from lossguard_mechanisms.targets.config import ATTENTION, DELTA, DeltaShape, TargetConfig
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.initial_weights import random_target

NAMES = ("dflash2", "dspark", "eagle3")
VOCAB_SIZE, HIDDEN = 61, 12

TIED_HYBRID = TargetConfig(
    model_type="qwen3_5_text",
    vocab_size=VOCAB_SIZE,
    hidden_size=HIDDEN,
    intermediate_size=20,
    layer_types=(DELTA, ATTENTION, DELTA),
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    rotary_dim=2,
    rope_theta=100.0,
    rms_norm_eps=1e-5,
    max_position_embeddings=256,
    tie_word_embeddings=True,
    delta=DeltaShape(num_key_heads=2, num_value_heads=2, key_dim=4, value_dim=4, conv_width=4),
)


def small_target(*, is_tied: bool = True, dtype: torch.dtype = torch.float64) -> Target:
    """A hybrid; with an own head it is not tied."""
    target = random_target(replace(TIED_HYBRID, tie_word_embeddings=is_tied), seed=2).to(dtype)
    _spread(target, seed=3)
    return target.eval().requires_grad_(requires_grad=False)


def small_config(name: str) -> DrafterConfig:
    """Two layers and depths fewer than the block has."""
    config = config_for(name, TIED_HYBRID)
    return replace(config, num_depths=5, num_layers=1 if name == "eagle3" else 2)


def small_drafter(name: str, target: Target) -> AnyDrafter:
    """With all weights random, norms and convolutions too."""
    drafter = random_drafter(name, target, 4, config=small_config(name))
    _spread(drafter, seed=5)
    return drafter


def random_ids(*shape: int, seed: int = 0) -> Tensor:
    """Token ids."""
    return torch.randint(0, VOCAB_SIZE, shape, generator=torch.Generator().manual_seed(seed))


def random_features(drafter: AnyDrafter, num_rows: int, *, seed: int = 1) -> Tensor:
    """[num_rows, L * H] as a target might give them."""
    size = len(drafter.feature_layers) * HIDDEN
    generator = torch.Generator().manual_seed(seed)
    dtype = drafter.target.embedding.weight.dtype
    return torch.randn(num_rows, size, generator=generator, dtype=torch.float64).to(dtype)


def _spread(module: torch.nn.Module, *, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)
            scale = 0.3 if parameter.dim() == 1 else 1.2 * parameter.shape[-1] ** -0.5
            parameter.add_(noise * scale)
