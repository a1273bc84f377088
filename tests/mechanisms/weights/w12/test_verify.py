"""Verify finds one flipped bit anywhere, and tells damage from difference."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lossguard.errors import LossguardError
from lossguard_mechanisms.weights.w12.convert import convert
from lossguard_mechanisms.weights.w12.verify import tensor_problem, verify
from tests.mechanisms.weights.w12.toy_weights import bf16_of, gaussian

SHARD = "model-00001-of-00002"


@pytest.fixture
def converted(two_shards: Path, tmp_path: Path) -> Path:
    """The converted model."""
    convert(two_shards, tmp_path / "out")
    return tmp_path / "out"


def code_of(target: Path, source: Path) -> str:
    with pytest.raises(LossguardError) as caught:
        verify(target, source)
    return caught.value.code


def test_every_flipped_bit_is_found(converted: Path, two_shards: Path) -> None:
    """Header or data, any byte but the padding of the header: no flip passes as equal."""
    path = converted / f"{SHARD}.w12.safetensors"
    good = path.read_bytes()
    draw = random.Random(5)
    for place in [0, 8, *(draw.randrange(len(good)) for _ in range(60))]:
        damaged = bytearray(good)
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        assert code_of(converted, two_shards) in {"LG1203", "LG1204"}
    path.write_bytes(good)
    assert verify(converted, two_shards).is_equal


@pytest.mark.parametrize("keep", [0, 3, 500, -1])
def test_a_truncated_shard_is_named(keep: int, converted: Path, two_shards: Path) -> None:
    path = converted / f"{SHARD}.w12.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(LossguardError, match=path.name) as caught:
        verify(converted, two_shards)
    assert caught.value.code in {"LG1203", "LG1204"}


def test_a_shard_that_is_gone_is_named(converted: Path, two_shards: Path) -> None:
    (converted / f"{SHARD}.w12.safetensors").unlink()
    assert code_of(converted, two_shards) == "LG1203"


def test_a_conversion_that_has_not_ended_is_not_equal(converted: Path, two_shards: Path) -> None:
    record = json.loads((converted / "w12.json").read_text())
    (converted / "w12.json").write_text(json.dumps({**record, "is_complete": False}))
    assert code_of(converted, two_shards) == "LG1209"


def test_a_single_changed_weight_of_the_original_is_found(converted: Path, two_shards: Path) -> None:
    path = two_shards / f"{SHARD}.safetensors"
    tensors = load_file(path)
    tensors["a.weight"].view(torch.int16)[7, 9] ^= 1
    save_file(tensors, path)
    report = verify(converted, two_shards)
    assert [(one.name, one.problem) for one in report.differences] == [
        ("a.weight", f"1 of 6,912 weights differ, the first at flat index {7 * 144 + 9:,}")
    ]
    assert not report.is_equal


def test_missing_and_additional_tensors_are_found(converted: Path, two_shards: Path) -> None:
    path = two_shards / f"{SHARD}.safetensors"
    tensors = load_file(path)
    tensors["new"] = tensors.pop("mask")
    save_file(tensors, path)
    found = {one.name: one.problem for one in verify(converted, two_shards).differences}
    assert found == {"new": "it is missing", "mask": "the original has no such tensor"}


def test_other_files_are_compared_too(converted: Path, two_shards: Path) -> None:
    (converted / "tokenizer.json").write_text("[]")
    config = json.loads((converted / "config.json").read_text())
    (converted / "config.json").write_text(json.dumps({**config, "hidden_size": 65}))
    (two_shards / "chat_template.jinja").write_text("x")
    found = {one.name for one in verify(converted, two_shards).differences}
    assert found == {"tokenizer.json", "config.json", "chat_template.jinja"}


def test_a_shard_more_or_less_is_found(converted: Path, two_shards: Path) -> None:
    (two_shards / f"{SHARD}.safetensors").rename(two_shards / "other.safetensors")
    (two_shards / "model.safetensors.index.json").unlink()
    found = {one.name: one.problem for one in verify(converted, two_shards).differences}
    assert found == {
        f"{SHARD}.w12.safetensors": "the original has no such shard",
        "other.w12.safetensors": "it was never converted",
    }


def test_bits_are_compared_not_values() -> None:
    zero, nan = torch.zeros(1, dtype=torch.bfloat16), bf16_of(torch.tensor([0x7FC1]))
    assert tensor_problem(zero, -zero) is not None
    assert tensor_problem(nan, nan.clone()) is None
    assert tensor_problem(nan, bf16_of(torch.tensor([0x7FC2]))) is not None
    assert tensor_problem(gaussian(2, 3), gaussian(3, 2)) is not None
    assert tensor_problem(torch.zeros(4), torch.zeros(4, dtype=torch.int32)) is not None
    assert tensor_problem(torch.empty(0), torch.empty(0)) is None
