"""The reference: every node replays its path from the committed state, token by token, in float64.

    S_i = exp(g_i) S_(p(i)) + k_i u_i^T      u_i = beta_i (v_i - exp(g_i) S_(p(i))^T k_i)      o_i = S_i^T q_i

(Yang, Kautz, Hatamizadeh: Gated Delta Networks, https://arxiv.org/abs/2412.06464), p(i) the parent of node i.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

from lossguard_kernels.wy_verify.rows import NORM_EPSILON, DeltaRows


def recur(rows: DeltaRows, parents: Sequence[int], state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [N, heads, value_dim] and the states after every node [N, heads, key_dim, value_dim] of one tree.

    ``rows`` of its N nodes; ``state`` [heads, key_dim, value_dim].
    """
    groups = rows.value.shape[1] // rows.key.shape[1]
    query = _unit(rows.query).repeat_interleave(groups, 1) * rows.key.shape[-1] ** -0.5
    states = [after_path(rows, path_to(parents, node), state) for node in range(len(parents))]
    outputs = [torch.einsum("hkv,hk->hv", now, query[node]) for node, now in enumerate(states)]
    return torch.stack(outputs), torch.stack(states)


def after_path(rows: DeltaRows, path: Sequence[int], state: Tensor) -> Tensor:
    """The state [heads, key_dim, value_dim] after the rows ``path``."""
    key = _unit(rows.key).repeat_interleave(rows.value.shape[1] // rows.key.shape[1], 1)
    value, decay, beta = rows.value.double(), rows.log_decay.double().exp(), rows.beta.double()
    now = state.double()
    for step in path:
        now = decay[step][:, None, None] * now
        recalled = torch.einsum("hkv,hk->hv", now, key[step])
        update = beta[step][:, None] * (value[step] - recalled)
        now = now + key[step][:, :, None] * update[:, None, :]
    return now


def convolve(channels: Tensor, weight: Tensor, past: Tensor, parents: Sequence[int]) -> tuple[Tensor, Tensor]:
    """SiLU of the causal convolution of every node along its path [N, C], and the past after every node.

    ``channels`` [N, C], ``weight`` [C, width], ``past`` [C, width - 1] (oldest first); pasts are [N, C, width - 1].
    """
    outputs, pasts, width = [], [], weight.shape[1]
    for node in range(len(parents)):
        whole = torch.cat((past.double(), channels[path_to(parents, node)].double().T), dim=1)
        outputs.append(silu((whole[:, -width:] * weight.double()).sum(1)))
        pasts.append(whole[:, whole.shape[1] - width + 1 :])
    return torch.stack(outputs), torch.stack(pasts)


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """From the root to ``node``."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def _unit(x: Tensor) -> Tensor:
    wide = x.double()
    unit: Tensor = wide / (wide.square().sum(-1, keepdim=True) + NORM_EPSILON).sqrt()
    return unit
