"""Which tensors of a model become W12 and which stay as they are, each with the reason."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard_mechanisms.weights.w12.bases import choose_bases
from lossguard_mechanisms.weights.w12.codec import encode, pattern_matrix, shape_problem
from lossguard_mechanisms.weights.w12.w12_tensor import W12Tensor, matrix_layout

ESCAPE_LIMIT = 0.02
"""Escapes are applied outside the planes: at more than this share of weights that work is no longer a side issue."""

BITS_LIMIT = 13.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """``coded`` is None for a tensor that stays as it is."""

    coded: W12Tensor | None
    reason: str


def decide(weight: Tensor, escape_limit: float = ESCAPE_LIMIT) -> Decision:
    """Encode a tensor if the format fits it, else say why not."""
    shape = tuple(weight.shape)
    if weight.dtype != torch.bfloat16:
        return Decision(coded=None, reason=f"raw: its dtype is {str(weight.dtype).removeprefix('torch.')}")
    problem = shape_problem(shape)
    if problem is not None:
        return Decision(coded=None, reason=f"raw: {problem}")
    choice = choose_bases(pattern_matrix(weight))
    problem = _too_costly(shape, choice.base.numel(), choice.num_escapes, escape_limit)
    if problem is not None:
        return Decision(coded=None, reason=f"raw: {problem}")
    return Decision(coded=encode(weight, choice), reason=choice.reason)


def _too_costly(shape: tuple[int, ...], num_bases: int, num_escapes: int, escape_limit: float) -> str | None:
    layout = matrix_layout(shape)
    fraction = num_escapes / layout.num_weights
    if fraction > escape_limit:
        return f"{fraction:.3g} of its weights would escape, the limit is {escape_limit:g}"
    bits = 8 * layout.num_bytes(num_bases=num_bases, num_escapes=num_escapes) / layout.num_weights
    if bits > BITS_LIMIT:
        return f"it would take {bits:.2f} bits per weight with padding, the limit is {BITS_LIMIT:g}"
    return None
