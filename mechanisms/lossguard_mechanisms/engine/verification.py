"""Running a tree through the gated delta rule and its convolution without touching the committed state.

For the nodes of a tree, parents first, with M the ancestor-or-self mask and G_i the sum of log decays on the path to i:

    D_ij = exp(G_i - G_j) on M, else 0         T_ij = beta_i D_ij (k_i . k_j) off the diagonal
    (I + T) U = diag(beta) (V - diag(exp G) K S_0)        O = diag(exp G) Q S_0 + (Q K^T * D) U

which is the chunked form of ``targets.gated_delta`` with M in place of the lower triangle. What a later commit needs
of every node is its unit key, its row of U and G: the stash (``commit``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from lossguard_mechanisms.targets.gated_delta import NORM_EPSILON
from lossguard_mechanisms.targets.mixing import DeltaInputs
from lossguard_mechanisms.targets.norms import widen

DeltaArithmetic: TypeAlias = Callable[[tuple[Tensor, ...]], tuple[Tensor, Tensor, Tensor, Tensor]]
LONGEST_BY_ROWS = 16  # beyond, a device's own triangular solution takes fewer launches


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaStash:
    """Of all nodes of one delta layer, float32 (float64 in a float64 model)."""

    keys: Tensor  # [B, key heads, N, key_dim], unit
    updates: Tensor  # [B, value heads, N, value_dim]: u
    totals: Tensor  # [B, value heads, N]: G


def verify_delta(
    inputs: DeltaInputs, ancestors: Tensor, state: Tensor, *, arithmetic: DeltaArithmetic | None = None
) -> tuple[Tensor, DeltaStash]:
    """Outputs of B trees of N nodes from ``state`` [B, value heads, key_dim, value_dim], which stays as it is.

    All inputs lead with [B, N]; ``ancestors`` [B, N, N]. Returns outputs [B, N, value heads, value_dim] in the dtype of
    the values, and the stash. ``arithmetic`` is ``delta_arithmetic`` (None), or the same compiled.
    """
    run = arithmetic or delta_arithmetic
    tensors = (inputs.query, inputs.key, inputs.value, inputs.log_decay, inputs.beta, ancestors, state)
    output, keys, updates, totals = run(tensors)
    return output, DeltaStash(keys=keys, updates=updates, totals=totals)


def delta_arithmetic(tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, keys, updates and totals from query, key, value, log decay, beta, ancestors and state."""
    query, key, value, log_decay, beta, ancestors, state = tensors
    groups, dtype = value.shape[2] // key.shape[2], value.dtype
    mask = ancestors[:, None]
    query = _unit(query).transpose(1, 2) * key.shape[-1] ** -0.5
    key = _unit(key).transpose(1, 2)
    value, beta = widen(value).transpose(1, 2), widen(beta).transpose(1, 2)[..., None]
    total = (mask.to(value.dtype) @ widen(log_decay).transpose(1, 2)[..., None])[..., 0]  # G
    decay = _decay(total, mask)
    same = (key @ key.transpose(-1, -2)).repeat_interleave(groups, 1)
    seen = (query @ key.transpose(-1, -2)).repeat_interleave(groups, 1) * decay
    scale = total.exp()[..., None]
    read = torch.cat((key, query), dim=2).repeat_interleave(groups, 1) @ state  # the state is read once
    recalled, asked = read.split(key.shape[2], dim=2)
    update = _solve(beta * decay * same, beta * (value - scale * recalled))
    output = scale * asked + seen @ update
    return output.transpose(1, 2).to(dtype), key, update, total


def verify_convolution(channels: Tensor, weight: Tensor, past: Tensor, sources: Tensor) -> tuple[Tensor, Tensor]:
    """Convolve every node of a tree along its own path, then SiLU.

    ``channels`` [B, N, C], ``weight`` [C, width], ``past`` [B, C, width - 1] (oldest first), ``sources`` [B, N, width]
    from ``convolution_sources``. Returns [B, N, C] and the columns ``[past, channels]`` [B, width - 1 + N, C] to commit
    from.
    """
    columns = torch.cat((past.transpose(1, 2).to(channels.dtype), channels), dim=1)
    _, num_nodes, width = sources.shape
    index = sources.flatten(1)[..., None].expand(-1, -1, columns.shape[-1])
    windows = columns.gather(1, index).unflatten(1, (num_nodes, width))  # [B, N, width, C]
    mixed = (widen(windows) * widen(weight).T).sum(dim=2).to(channels.dtype)
    return functional.silu(mixed), columns


def convolution_sources(parents: Tensor, *, width: int) -> Tensor:
    """[B, N, width]: the columns that each node's window reads, oldest first; columns 0 .. width - 2 are the past.

    ``parents`` [B, N]. Above the anchor a window runs into the past's columns, newest first.
    """
    own = torch.arange(parents.shape[1], device=parents.device).expand_as(parents)
    column, windows = own + width - 1, []
    earlier = torch.arange(-1, width - 2, device=parents.device).expand(parents.shape[0], -1)
    up = torch.cat(
        (earlier, parents + width - 1), dim=1
    )  # before the anchor, whose parent is -1, comes the newest past
    for _ in range(width):
        windows.append(column)
        column = up.gather(1, column.clamp(min=0))
    return torch.stack(windows[::-1], dim=-1)


def _solve(system: Tensor, right: Tensor) -> Tensor:
    """``(I + T) X = right`` with T strictly lower triangular in ``system`` (the rest of it is not read)."""
    if system.is_cuda and system.shape[-1] <= LONGEST_BY_ROWS:
        return solve_by_rows(system, right)
    solved: Tensor = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    return solved


def solve_by_rows(system: Tensor, right: Tensor) -> Tensor:
    """The same by forward substitution: every solved row is taken out of all rows below it at once.

    Element by element, so that it can be compiled into few kernels. Products of powers of T are fewer steps and lose
    digits where keys are alike and rates near one.
    """
    below, solved = system.tril(-1), right
    for row in range(system.shape[-1] - 1):
        solved = solved - below[..., row, None] * solved[..., row, None, :]
    return solved


def _unit(x: Tensor) -> Tensor:
    wide = widen(x)
    unit: Tensor = wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + NORM_EPSILON)
    return unit


def _decay(total: Tensor, mask: Tensor) -> Tensor:
    """exp(G_i - G_j) for ancestors j of i and i itself, else 0. Masked before exp, which could overflow elsewhere."""
    return (total[..., :, None] - total[..., None, :]).masked_fill(~mask, float("-inf")).exp()
