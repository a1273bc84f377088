"""Drafters with random weights, to be trained, tested or timed."""

from __future__ import annotations

from typing import TypeAlias

import torch

from lossguard_mechanisms.drafters.config import DrafterConfig, config_for
from lossguard_mechanisms.drafters.dflash2 import Dflash2
from lossguard_mechanisms.drafters.dspark import Dspark
from lossguard_mechanisms.drafters.eagle3 import Eagle3
from lossguard_mechanisms.targets.decoder import Target

AnyDrafter: TypeAlias = Dflash2 | Dspark | Eagle3
STANDARD_DEVIATION = 0.02
_CLASSES: dict[str, type[Dflash2] | type[Dspark] | type[Eagle3]] = {
    "dflash2": Dflash2,
    "dspark": Dspark,
    "eagle3": Eagle3,
}


def drafter_of(config: DrafterConfig, target: Target) -> AnyDrafter:
    """A drafter with the weights that torch gives, on the default device."""
    return _CLASSES[config.name](config, target)


def random_drafter(name: str, target: Target, seed: int, *, config: DrafterConfig | None = None) -> AnyDrafter:
    """A drafter for ``target`` with random weights, on its device and in its dtype, without gradients.

    The same for the same seed. ``config`` (None: ``config_for``) must have that name.
    """
    drafter = drafter_of(config or config_for(name, target.config), target)
    assert drafter.name == name, "the config is of another drafter"
    start_weights(drafter, seed)
    weight = target.embedding.weight
    return drafter.to(device=weight.device, dtype=weight.dtype).eval().requires_grad_(requires_grad=False)


def start_weights(drafter: AnyDrafter, seed: int) -> None:
    """Matrices normal with standard deviation 0.02, those that write into the residual stream smaller.

    A convolution begins as the identity, and what a pair of tokens adds to the logits with zero.
    """
    generator = torch.Generator().manual_seed(seed)
    scale = (2 * drafter.config.num_layers) ** -0.5
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if name.endswith(("coefficient_proj.weight", "after.weight", "confidence_proj.bias")):
                parameter.zero_()
            elif parameter.dim() == 2:
                deviation = STANDARD_DEVIATION * (scale if name.endswith("out_proj.weight") else 1.0)
                parameter.normal_(0.0, deviation, generator=generator)
