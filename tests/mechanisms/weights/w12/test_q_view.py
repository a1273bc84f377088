"""HI alone, read as E4M3, is the weight with a cut mantissa, without a copy."""

from __future__ import annotations

import pytest
import torch

from lossguard_mechanisms.weights.w12.bases import BaseChoice
from lossguard_mechanisms.weights.w12.codec import encode
from lossguard_mechanisms.weights.w12.q_view import q_scale, q_tiles, q_weight
from lossguard_mechanisms.weights.w12.w12_tensor import escape_positions
from tests.mechanisms.weights.w12.toy_weights import bf16_of, gaussian


@pytest.mark.parametrize(("rows", "columns"), [(32, 256), (20, 70), (16, 144)])
def test_it_is_the_weight_with_its_low_bits_cleared(rows: int, columns: int) -> None:
    weight = gaussian(rows, columns)
    weight[3] = (weight[3].to(torch.float32) * 2.0**40).to(torch.bfloat16)
    coded = encode(weight)
    cut = (weight.view(torch.int16) & ~0x0F).view(torch.bfloat16).to(torch.float32)
    cut[escape_positions(coded)] = 0.0
    assert torch.equal(q_weight(coded), cut)
    assert coded.num_escapes < cut.count_nonzero()


def test_the_tiles_share_memory_with_the_plane() -> None:
    coded = encode(gaussian(32, 320))
    full, rest = q_tiles(coded)
    assert (full.shape, rest.shape) == ((2, 2, 16, 128), (2, 16, 64))
    assert full.dtype == torch.float8_e4m3fn
    assert (
        full.untyped_storage().data_ptr() == rest.untyped_storage().data_ptr() == coded.hi.untyped_storage().data_ptr()
    )


def test_no_byte_of_any_pattern_is_nan() -> None:
    coded = encode(bf16_of(torch.arange(65536)).view(256, 256))
    assert not q_tiles(coded)[0].to(torch.float32).isnan().any()


def test_scales_are_finite_for_every_base() -> None:
    weight = torch.tensor([[2.0**-126] * 16, [2.0**126] * 16], dtype=torch.float32).to(torch.bfloat16)
    base = torch.tensor([0, 239], dtype=torch.uint8)
    coded = encode(weight, BaseChoice(base=base, num_escapes=0, reason="given"))
    assert q_scale(coded).isfinite().all()
    assert torch.equal(q_weight(coded), weight.to(torch.float32))
    assert coded.num_escapes == 0
