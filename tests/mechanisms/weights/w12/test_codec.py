"""Bit for bit, for every pattern; equal to the plain reference in every byte."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lossguard.errors import UsageError
from lossguard_mechanisms.weights.w12 import codec, naive
from lossguard_mechanisms.weights.w12.bases import BaseChoice
from lossguard_mechanisms.weights.w12.codec import decode, encode
from lossguard_mechanisms.weights.w12.w12_tensor import W12Tensor, escape_positions
from tests.mechanisms.weights.w12.toy_weights import bf16_of, gaussian, patterns_of

ALL_PATTERNS = torch.arange(65536)
NAN, INF = 0x7FC1, 0x7F80
SPECIAL = [0x0000, 0x8000, INF, 0xFF80, NAN, 0xFFFF, 0x7F81, 0x0001, 0x807F, 0x0080, 0x7F7F, 0xC2F7]


def same_bits(found: Tensor, expected: Tensor) -> bool:
    return found.dtype == expected.dtype and torch.equal(found.view(torch.int16), expected.view(torch.int16))


def with_base(weight: Tensor, base: list[int]) -> W12Tensor:
    return encode(weight, BaseChoice(base=torch.tensor(base, dtype=torch.uint8), num_escapes=0, reason="given"))


def parts_as_values(coded: W12Tensor) -> tuple[object, ...]:
    planes = (bytes(coded.hi.reshape(-1).tolist()), bytes(coded.lo.reshape(-1).tolist()))
    bits = tuple(value & 0xFFFF for value in coded.escape_bits.tolist())
    return (*planes, tuple(coded.escape_start.tolist()), tuple(coded.escape_place.tolist()), bits)


@st.composite
def matrices(draw: st.DrawFn) -> tuple[Tensor, list[int]]:
    """A small matrix of mixed patterns, and a base for all or for each row."""
    rows, columns = draw(st.integers(1, 40)), draw(st.integers(1, 200))
    seed, low, spread = draw(st.integers(0, 2**32)), draw(st.integers(0, 255)), draw(st.integers(1, 40))
    generator = torch.Generator().manual_seed(seed)
    exponent = (low + torch.randint(spread, (rows, columns), generator=generator)).clamp(max=255)
    rest = torch.randint(256, (rows, columns), generator=generator)
    patterns = (rest >> 7) << 15 | exponent << 7 | rest & 0x7F
    for place, pattern in enumerate(draw(st.lists(st.sampled_from(SPECIAL), max_size=rows * columns))):
        patterns.view(-1)[place] = pattern
    bases = st.integers(0, 239)
    base = draw(st.one_of(st.lists(bases, min_size=1, max_size=1), st.lists(bases, min_size=rows, max_size=rows)))
    return bf16_of(patterns), base


@given(matrices())
def test_it_is_the_reference_in_every_byte(given_matrix: tuple[Tensor, list[int]]) -> None:
    weight, base = given_matrix
    coded = with_base(weight, base)
    expected = naive.encode(patterns_of(weight), base)
    assert parts_as_values(coded) == (
        expected.hi, expected.lo, expected.escape_start, expected.escape_place, expected.escape_bits
    )  # fmt: skip
    assert naive.decode(expected) == patterns_of(weight)
    assert same_bits(decode(coded), weight)
    assert coded.num_bytes == coded.layout.num_bytes(num_bases=coded.base.numel(), num_escapes=coded.num_escapes)


@given(matrices())
def test_chosen_bases_keep_every_bit(given_matrix: tuple[Tensor, list[int]]) -> None:
    weight, _ = given_matrix
    assert same_bits(decode(encode(weight)), weight)


@given(seed=st.integers(0, 2**32), columns=st.sampled_from([256, 64, 16, 4096, 1024]))
def test_all_patterns_survive_in_any_order(seed: int, columns: int) -> None:
    order = torch.randperm(65536, generator=torch.Generator().manual_seed(seed))
    weight = bf16_of(ALL_PATTERNS[order]).view(-1, columns)
    assert same_bits(decode(encode(weight)), weight)


@pytest.mark.parametrize("base", [0, 1, 15, 100, 112, 127, 238, 239])
def test_all_patterns_survive_with_any_base(base: int) -> None:
    weight = bf16_of(ALL_PATTERNS).view(256, 256)
    coded = with_base(weight, [base])
    assert same_bits(decode(coded), weight)
    assert coded.num_escapes == 65536 - 2 - 2 * (0x7F0 - 0x80), "two zeros and fifteen codes but for the NaN octant"


def test_a_record_is_what_the_format_says() -> None:
    """1.0 has exponent 127: with base 119 its code is 8, which E4M3 reads as 2.0."""
    coded = with_base(torch.tensor([[1.0, -1.0, 0.0, -0.0]], dtype=torch.bfloat16), [119])
    assert coded.hi[0, :4].tolist() == [8 << 3, 0x80 | 8 << 3, 0x00, 0x80]
    assert coded.hi.view(torch.float8_e4m3fn)[0, :4].to(torch.float32).tolist() == [2.0, -2.0, 0.0, -0.0]
    assert coded.num_escapes == 0


def test_the_octant_that_would_be_nan_escapes() -> None:
    top = bf16_of(torch.tensor([[127 << 7 | 0x6F, 127 << 7 | 0x70, 127 << 7 | 0x7F]]))
    coded = with_base(top, [127 - 15])
    assert escape_positions(coded)[1].tolist() == [1, 2]
    assert not coded.hi.view(torch.float8_e4m3fn).to(torch.float32).isnan().any()


ADVERSARIAL = {
    "zeros": torch.zeros(33, 100, dtype=torch.bfloat16),
    "negative zeros": -torch.zeros(33, 100, dtype=torch.bfloat16),
    "constant": torch.full((33, 100), 3.140625, dtype=torch.bfloat16),
    "mostly escapes": bf16_of(torch.arange(64 * 64) * 16 % 65536).view(64, 64),
    "inf": torch.full((16, 128), float("inf"), dtype=torch.bfloat16),
    "nan payloads": bf16_of(0x7F81 + torch.arange(16 * 64) % 126).view(16, 64),
    "subnormals": bf16_of(1 + torch.arange(16 * 64) % 127).view(16, 64),
    "largest": bf16_of(torch.full((16, 16), 0x7F7F)),
    "one weight": torch.ones(1, 1, dtype=torch.bfloat16),
    "one column": gaussian(300, 1),
    "one row": gaussian(1, 300),
    "a single huge outlier": torch.cat((gaussian(31, 64), torch.full((1, 64), 1e38, dtype=torch.bfloat16))),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_adversarial_weights_keep_every_bit(name: str) -> None:
    weight = ADVERSARIAL[name]
    assert same_bits(decode(encode(weight)), weight)


def test_adversarial_weights_are_what_they_say() -> None:
    coded = encode(ADVERSARIAL["mostly escapes"])
    assert coded.num_escapes > 0.5 * coded.layout.num_weights
    assert encode(ADVERSARIAL["zeros"]).num_escapes == encode(ADVERSARIAL["negative zeros"]).num_escapes == 0
    assert encode(ADVERSARIAL["inf"]).num_escapes == 16 * 128


@pytest.mark.parametrize("shape", [(3, 20, 48), (2, 3, 4, 16), (16, 128), (17, 129)])
def test_leading_dimensions_are_rows(shape: tuple[int, ...]) -> None:
    weight = gaussian(*shape)
    decoded = decode(encode(weight))
    assert decoded.shape == weight.shape
    assert same_bits(decoded, weight)


def test_blocks_of_rows_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = gaussian(500, 200)
    whole = encode(weight)
    monkeypatch.setattr(codec, "_BLOCK_ON_CPU", 1)
    pieces = encode(weight)
    assert parts_as_values(pieces) == parts_as_values(whole)
    assert whole.num_escapes > 0
    assert same_bits(decode(whole), weight)


def test_strides_do_not_matter() -> None:
    weight = gaussian(64, 96)
    assert parts_as_values(encode(weight.t())) == parts_as_values(encode(weight.t().contiguous()))


def test_decode_fills_given_memory() -> None:
    weight = gaussian(32, 64)
    out = torch.empty_like(weight)
    assert decode(encode(weight), out) is out
    assert same_bits(out, weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int16, torch.float8_e4m3fn])
def test_another_dtype_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(UsageError, match="bfloat16") as caught:
        encode(torch.zeros(16, 16).to(dtype))
    assert caught.value.code == "LG1201"


@pytest.mark.parametrize("shape", [(), (5,), (0, 16), (16, 0), (1, 1 << 24)])
def test_a_shape_that_is_no_matrix_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="shape") as caught:
        encode(torch.empty(shape, dtype=torch.bfloat16))
    assert caught.value.code == "LG1202"


@pytest.mark.parametrize(("rows", "columns"), [(512, 1024), (576, 576)])
def test_trained_weights_take_little_more_than_twelve_bits(rows: int, columns: int) -> None:
    coded = encode(gaussian(rows, columns))
    assert 12.0 < coded.bits_per_weight < 12.02
    assert coded.num_escapes / coded.layout.num_weights < 3.5e-4
