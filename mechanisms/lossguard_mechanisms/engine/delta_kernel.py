# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernel of one token through the gated delta rule: every state is read and written once, where it lies.

One program holds the columns of one value head's state of one sequence, [key_dim, BLOCK], and does what
``targets.gated_delta.delta_step`` says, in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lossguard_mechanisms.targets.gated_delta import NORM_EPSILON
from lossguard_mechanisms.targets.mixing import DeltaInputs

_BLOCK = 32


@triton.jit
def _step_kernel(  # noqa: PLR0913
    query, key, value, log_decay, beta, states, slots, output, query_stride, key_stride, value_stride, scale,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr,
    EPSILON: tl.constexpr,
):  # fmt: skip
    sequence, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(slots + sequence)
    rows = tl.arange(0, KEY)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    shared = head // GROUPS
    q = tl.load(query + sequence * query_stride + shared * KEY + rows).to(tl.float32)
    k = tl.load(key + sequence * key_stride + shared * KEY + rows).to(tl.float32)
    v = tl.load(value + sequence * value_stride + head * VALUE + columns).to(tl.float32)
    q = q * (scale / tl.sqrt(tl.sum(q * q, 0) + EPSILON))
    k = k * (1.0 / tl.sqrt(tl.sum(k * k, 0) + EPSILON))
    decay = tl.exp(tl.load(log_decay + sequence * HEADS + head))
    rate = tl.load(beta + sequence * HEADS + head).to(tl.float32)
    place = (slot * HEADS + head) * KEY * VALUE + rows[:, None] * VALUE + columns
    state = tl.load(states + place) * decay
    update = rate * (v - tl.sum(state * k[:, None], 0))
    state += k[:, None] * update
    mixed = tl.sum(state * q[:, None], 0)
    tl.store(states + place, state)
    tl.store(output + (sequence * HEADS + head) * VALUE + columns, mixed.to(output.dtype.element_ty))


def delta_step_in_place(inputs: DeltaInputs, states: Tensor, slots: Tensor) -> Tensor:
    """One token for each of B sequences; ``states`` [slots, value heads, key_dim, value_dim] float32 change in place.

    All inputs lead with [B]; ``key_dim`` is a power of two and ``value_dim`` a multiple of 16. Returns
    [B, value heads, value_dim] in the dtype of the values.
    """
    batch, heads, value_dim = inputs.value.shape
    key_dim = inputs.key.shape[2]
    block = min(_BLOCK, value_dim & -value_dim)
    output = torch.empty((batch, heads, value_dim), dtype=inputs.value.dtype, device=inputs.value.device)
    _step_kernel[(batch, heads, value_dim // block)](
        inputs.query, inputs.key, inputs.value, inputs.log_decay.contiguous(), inputs.beta.contiguous(), states, slots,
        output, inputs.query.stride(0), inputs.key.stride(0), inputs.value.stride(0), key_dim**-0.5,
        HEADS=heads, GROUPS=heads // inputs.key.shape[1], KEY=key_dim, VALUE=value_dim, BLOCK=block,
        EPSILON=NORM_EPSILON,
    )  # fmt: skip
    return output
