"""The counts are exact, and a base per row is taken only where it pays."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lossguard_mechanisms.weights.w12.bases import choose_bases
from lossguard_mechanisms.weights.w12.codec import encode
from lossguard_mechanisms.weights.w12.layout import MAX_BASE
from lossguard_mechanisms.weights.w12.naive import record_of
from tests.mechanisms.weights.w12.toy_weights import bf16_of, gaussian, patterns_of


def escapes_with(patterns: list[int], base: int) -> int:
    return sum(record_of(pattern, base) is None for pattern in patterns)


def bits_of(weight: Tensor) -> Tensor:
    return weight.view(torch.int16)


@given(
    rows=st.integers(1, 6),
    columns=st.integers(1, 80),
    low=st.integers(0, 255),
    spread=st.integers(1, 35),
    seed=st.integers(0, 2**32),
)
def test_no_other_base_loses_less(rows: int, columns: int, low: int, spread: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    exponent = (low + torch.randint(spread, (rows, columns), generator=generator)).clamp(max=255)
    weight = bf16_of(exponent << 7 | torch.randint(128, (rows, columns), generator=generator))
    choice = choose_bases(bits_of(weight))
    assert encode(weight, choice).num_escapes == choice.num_escapes
    matrix = patterns_of(weight)
    flat = [pattern for row in matrix for pattern in row]
    one = min(escapes_with(flat, base) for base in range(MAX_BASE + 1))
    each = sum(min(escapes_with(row, base) for base in range(MAX_BASE + 1)) for row in matrix)
    if 6 * each + rows < 6 * one + 1:
        assert (choice.base.numel(), choice.num_escapes) == (rows, each)
    else:
        assert (choice.base.numel(), choice.num_escapes) == (1, one)


def test_rows_of_different_scale_get_bases_of_their_own() -> None:
    scales = torch.logspace(-3, 3, 64)[:, None]
    weight = (gaussian(64, 512).to(torch.float32) * scales).to(torch.bfloat16)
    choice = choose_bases(bits_of(weight))
    assert choice.base.numel() == 64
    assert choice.num_escapes < 1e-3 * weight.numel()
    assert choice.reason.startswith("base per row:")


def test_rows_of_one_scale_share_a_base() -> None:
    choice = choose_bases(bits_of(gaussian(64, 64)))
    assert choice.base.numel() == 1
    assert choice.reason.startswith("one base:")


def test_zeros_cost_nothing_and_hide_nothing() -> None:
    """Most weights are zero: the sample may hold nothing else, and the rest must still find its window."""
    weight = torch.zeros(512, 512, dtype=torch.bfloat16)
    weight[1, 1:4] = gaussian(3)
    assert choose_bases(bits_of(weight)).num_escapes == 0


def test_the_choice_is_the_same_on_every_run() -> None:
    weight = torch.full((32, 32), 2.0, dtype=torch.bfloat16)  # fifteen bases hold it equally well
    first, second = choose_bases(bits_of(weight)), choose_bases(bits_of(weight))
    assert first.base.tolist() == second.base.tolist() == [128 - 15]
