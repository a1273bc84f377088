"""The gated delta rule and its convolution, a chunk or one token at a time, from a given state.

Per value head, with S [key_dim, value_dim], unit keys and unit queries scaled by key_dim ** -0.5:

    S_t = exp(g_t) S_(t-1) + k_t u_t^T      u_t = beta_t (v_t - exp(g_t) S_(t-1)^T k_t)      o_t = S_t^T q_t

(Yang, Kautz, Hatamizadeh: Gated Delta Networks, https://arxiv.org/abs/2412.06464). Within a chunk, with
G = cumsum(g), D_ij = exp(G_i - G_j) for i >= j and T_ij = beta_i D_ij (k_i . k_j) for i > j, unrolling gives

    (I + T) U = diag(beta) (V - diag(exp G) K S_0)        O = diag(exp G) Q S_0 + (Q K^T * D) U
    S_end = exp(G_end) S_0 + (K * exp(G_end - G))^T U

so that U = U_v - W S_0, where U_v and W do not depend on the state and are solved for all chunks at once.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from lossguard_mechanisms.targets.mixing import DeltaInputs
from lossguard_mechanisms.targets.norms import widen

NORM_EPSILON = 1e-6
LONGEST_CHUNK = 64
SHORTEST_CHUNK = 16


def chunk_length_for(length: int) -> int:
    """16, 32 or 64: the shortest that holds ``length`` tokens, since a chunk's cost grows with its square."""
    chunk = SHORTEST_CHUNK
    while chunk < min(length, LONGEST_CHUNK):
        chunk *= 2
    return chunk


def delta_chunks(
    inputs: DeltaInputs, state: Tensor | None, *, chunk_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """Run T tokens of B sequences; all inputs lead with [B, T].

    ``state`` [B, value heads, key_dim, value_dim] is left alone; None starts from zero. A padded token has beta and
    log decay 0 and a zero key, and changes nothing. Returns the outputs [B, T, value heads, value_dim] in the dtype
    of the values, and the state after the last token in float32 (float64 for float64 input).
    """
    length = inputs.value.shape[1]
    with torch.autocast(device_type=inputs.value.device.type, enabled=False):
        outputs, state = _run_chunks(_in_chunks(inputs, chunk_length or chunk_length_for(length)), state)
    return outputs.flatten(2, 3)[:, :, :length].transpose(1, 2).to(inputs.value.dtype), state


def delta_step(inputs: DeltaInputs, state: Tensor, *, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One token of each of B sequences; all inputs lead with [B]. As ``delta_chunks`` otherwise.

    ``out`` is where the new state goes, perhaps ``state`` itself: on a CPU a third of the time is that of new memory.
    """
    groups = inputs.value.shape[1] // inputs.key.shape[1]
    query = _unit(inputs.query).repeat_interleave(groups, 1) * inputs.key.shape[-1] ** -0.5
    key = _unit(inputs.key).repeat_interleave(groups, 1)
    state = torch.mul(state, widen(inputs.log_decay).exp()[..., None, None], out=out)
    recalled = (key[:, :, None] @ state)[:, :, 0]
    update = widen(inputs.beta)[..., None] * (widen(inputs.value) - recalled)
    state = state.addcmul_(key[..., None], update[:, :, None])
    output = (query[:, :, None] @ state)[:, :, 0]
    return output.to(inputs.value.dtype), state


def convolve_chunk(channels: Tensor, weight: Tensor, past: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Causal convolution per channel, then SiLU.

    ``channels`` [B, T, C], ``weight`` [C, width], ``past`` [B, C, width - 1] (oldest column first), ``lengths`` [B]
    counts the tokens that are no padding (None: all T). Returns [B, T, C] and the past after each last token.
    """
    window = torch.cat((past.to(channels.dtype), channels.transpose(1, 2)), dim=-1)
    if channels.shape[1] == 1:
        convolved = (widen(window) * widen(weight)).sum(-1, keepdim=True).to(channels.dtype)
    else:
        convolved = functional.conv1d(window, weight[:, None], groups=weight.shape[0])
    num_past = past.shape[-1]
    if lengths is None:
        after = window[..., window.shape[-1] - num_past :]
    else:
        columns = lengths[:, None, None] + torch.arange(num_past, device=lengths.device)
        after = window.gather(-1, columns.expand(-1, window.shape[1], -1))
    return functional.silu(convolved).transpose(1, 2), after


def _unit(x: Tensor) -> Tensor:
    wide = widen(x)
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + NORM_EPSILON)


def _in_chunks(inputs: DeltaInputs, chunk: int) -> DeltaInputs:
    """Wide, normalised, heads first and padded: [B, heads, chunks, chunk, ...]."""

    def split(x: Tensor) -> Tensor:
        moved = x.transpose(1, 2)
        missing = -moved.shape[2] % chunk
        padding = (0, 0) * (moved.dim() - 3) + (0, missing)
        return functional.pad(moved, padding).reshape(*moved.shape[:2], -1, chunk, *moved.shape[3:])

    return DeltaInputs(
        query=split(_unit(inputs.query) * inputs.query.shape[-1] ** -0.5),
        key=split(_unit(inputs.key)),
        value=split(widen(inputs.value)),
        log_decay=split(widen(inputs.log_decay)),
        beta=split(widen(inputs.beta)),
    )


def _run_chunks(inputs: DeltaInputs, state: Tensor | None) -> tuple[Tensor, Tensor]:
    groups = inputs.value.shape[1] // inputs.key.shape[1]
    query, key = (x.repeat_interleave(groups, 1) for x in (inputs.query, inputs.key))
    total = inputs.log_decay.cumsum(-1)  # G
    decay = _pairwise_decay(total)
    same = (inputs.key @ inputs.key.transpose(-1, -2)).repeat_interleave(groups, 1)
    beta = inputs.beta[..., None]
    right = torch.cat((beta * inputs.value, beta * total.exp()[..., None] * key), dim=-1)
    solved = torch.linalg.solve_triangular(beta * decay * same, right, upper=False, unitriangular=True)
    fresh, reading = solved.split((inputs.value.shape[-1], key.shape[-1]), dim=-1)  # U_v, W
    seen = (inputs.query @ inputs.key.transpose(-1, -2)).repeat_interleave(groups, 1) * decay
    reading_query = query * total.exp()[..., None]
    writing_key = (key * (total[..., -1:] - total).exp()[..., None]).transpose(-1, -2)
    carried = total[..., -1].exp()[..., None, None]
    if state is None:
        state = key.new_zeros((*key.shape[:2], key.shape[-1], inputs.value.shape[-1]))
    outputs = []
    for index in range(key.shape[2]):
        update = fresh[:, :, index] - reading[:, :, index] @ state
        outputs.append(reading_query[:, :, index] @ state + seen[:, :, index] @ update)
        state = carried[:, :, index] * state + writing_key[:, :, index] @ update
    return torch.stack(outputs, dim=2), state


def _pairwise_decay(total: Tensor) -> Tensor:
    """exp(G_i - G_j) for i >= j, else 0. Masked before exp: above the diagonal it would overflow."""
    size = total.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1)
    return (total[..., :, None] - total[..., None, :]).masked_fill(later, float("-inf")).exp()
