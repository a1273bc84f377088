"""A target with random weights, to be trained or to be measured."""

from __future__ import annotations

import math

import torch
from torch import nn

from lossguard_mechanisms.targets.config import TargetConfig
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.layers import Delta

STANDARD_DEVIATION = 0.02
SHORTEST_STEP, LONGEST_STEP = 1e-3, 1e-1
LARGEST_DECAY = 16.0


def random_target(config: TargetConfig, *, seed: int) -> Target:
    """A target in float32 on the CPU, the same for the same seed.

    Matrices are normal with standard deviation 0.02, those that write into the residual stream scaled by
    (2 layers) ** -0.5. Decay rates are uniform in 1 .. 16 and time steps log-uniform in 0.001 .. 0.1, as for Mamba-2
    (https://arxiv.org/abs/2405.21060): heads begin with memories from one to about a thousand tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    target = Target(config)
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            if parameter.dim() == 2:
                scale = (2 * config.num_layers) ** -0.5 if name.endswith("out_proj.weight") else 1.0
                parameter.normal_(0.0, STANDARD_DEVIATION * scale, generator=generator)
        for module in target.modules():
            if isinstance(module, Delta):
                _start_delta(module, generator)
    return target


def _start_delta(module: Delta, generator: torch.Generator) -> None:
    bound = module.conv.shape[1] ** -0.5
    module.conv.uniform_(-bound, bound, generator=generator)
    module.decay_log.uniform_(1.0, LARGEST_DECAY, generator=generator).log_()
    low, high = math.log(SHORTEST_STEP), math.log(LONGEST_STEP)
    steps = torch.empty_like(module.decay_bias).uniform_(low, high, generator=generator).exp()
    module.decay_bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus


def num_parameters(module: nn.Module) -> int:
    """Parameters of a module, a shared one counted once."""
    return sum(parameter.numel() for parameter in module.parameters())
