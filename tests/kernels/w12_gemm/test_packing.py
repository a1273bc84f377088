"""Weights arranged for the kernels hold every bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lossguard_kernels.w12_gemm import naive
from lossguard_kernels.w12_gemm.weights import LOWEST_BASE, KernelWeights
from lossguard_mechanisms.weights.w12.codec import encode
from lossguard_mechanisms.weights.w12.q_view import q_weight
from tests.kernels.w12_gemm.kernel_weights import gaussian, packed, wild


@given(rows=st.integers(1, 40), columns=st.integers(1, 300), seed=st.integers(0, 1000))
@settings(max_examples=25)
def test_every_bit_survives(rows: int, columns: int, seed: int) -> None:
    bits = torch.randint(-(2**15), 2**15, (rows, columns), generator=torch.Generator().manual_seed(seed))
    plain = gaussian(rows, columns, seed=seed).view(torch.int16)
    weights = torch.where(bits % 7 == 0, bits.to(torch.int16), plain).view(torch.bfloat16)
    found = naive.decode(KernelWeights.pack(encode(weights)))
    assert torch.equal(found.view(torch.int16), weights.view(torch.int16))


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (33, 130), (48, 256), (5, 400)])
def test_the_high_plane_is_the_q_view(rows: int, columns: int) -> None:
    coded = encode(wild(rows, columns))
    assert torch.equal(naive.decode_hi(KernelWeights.pack(coded)).float(), q_weight(coded))


def test_a_tile_is_where_it_is_said_to_be() -> None:
    weights = gaussian(40, 200)
    coded, record = packed(weights), weights.view(torch.int16).to(torch.int32) & 0xFFFF
    assert coded.hi.shape == (3, 4, 16, 64)
    assert coded.lo.shape == (3, 4, 16, 32)
    row, column = 37, 77
    high = int(coded.hi[row // 16, column // 64, row % 16, column % 64])
    byte = int(coded.lo[row // 16, column // 64, row % 16, column % 64 // 8 * 4 + column % 4])
    low = byte >> column % 8 // 4 * 4 & 15
    code = ((int(record[row, column]) >> 7) & 0xFF) - int(coded.base[0])
    assert high == (int(record[row, column]) >> 8 & 0x80) | code << 3 | (int(record[row, column]) >> 4 & 7)
    assert low == int(record[row, column]) & 15


def test_padding_is_zero() -> None:
    coded = packed(gaussian(20, 70))
    assert int(coded.hi[:, 1, :, 6:].sum()) == 0
    assert int(coded.lo[1, :, 4:].sum()) == 0
    assert int(coded.counters.sum()) == 0


def test_weights_that_could_overflow_are_not_fused() -> None:
    tiny = gaussian(16, 64) * 2.0**-60
    tiny[3, 3] = 1.0
    reason = packed(tiny).reason_against_fusing
    assert reason is not None
    assert str(LOWEST_BASE) in reason
    assert packed(gaussian(16, 64)).reason_against_fusing is None


def test_bytes_are_twelve_bits_a_weight() -> None:
    coded = packed(gaussian(1024, 1024))
    assert coded.num_bytes / 1024**2 * 8 == pytest.approx(12.01, abs=0.01)
