"""Random numbers that are a function of (key, position): no state, no order, the same in every batch and on any device.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3, SC 2011) on int64 tensors: the
64-bit products wrap, and their 32-bit halves are those of the unsigned product.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_NUM_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_HIGH_BITS, _LOW_BITS = 27, 26  # of the 53 bits of a float64


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Ten rounds over 32-bit words held in int64 tensors of one shape; returns four such words."""
    first, second, third, fourth = counter
    low_key, high_key = key
    for _ in range(_NUM_ROUNDS):
        high_first, low_first = _product(first, _MULTIPLIERS[0])
        high_third, low_third = _product(third, _MULTIPLIERS[1])
        first, third = high_third ^ second ^ low_key, high_first ^ fourth ^ high_key
        second, fourth = low_third, low_first
        low_key = (low_key + _KEY_STEPS[0]) & _MASK
        high_key = (high_key + _KEY_STEPS[1]) & _MASK
    return first, second, third, fourth


def uniforms(keys: Tensor, positions: Tensor) -> Tensor:
    """One number in (0, 1] per row [N], float64 with 53 random bits, from int64 keys [N] and positions [N].

    The largest of the 2^53 rounds up to 1.
    """
    zero = torch.zeros_like(positions)
    counter = (positions & _MASK, (positions >> 32) & _MASK, zero, zero)
    words = philox(counter, (keys & _MASK, (keys >> 32) & _MASK))
    bits = (words[0] >> (32 - _HIGH_BITS)) * 2**_LOW_BITS + (words[1] >> (32 - _LOW_BITS))
    numbers: Tensor = (bits.double() + 0.5) * 2.0**-53
    return numbers


def request_key(seed: int, request_id: str, repeat_id: int) -> int:
    """The 63-bit key of a request.

    Its id is part of it: all requests of a test share one seed, and must not draw the same numbers.
    """
    data = repr((seed, request_id, repeat_id)).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


def _product(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a 64-bit product."""
    product = word * multiplier
    return (product >> 32) & _MASK, product & _MASK
