"""A converted folder gives the weights that were converted, or an error: never others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lossguard.errors import IntegrityError
from lossguard_mechanisms.weights.w12.convert import convert
from lossguard_mechanisms.weights.w12_plugins.converted_folder import dense_weights, is_converted
from tests.mechanisms.weights.w12.toy_weights import bf16_of, gaussian


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A model and its conversion: a matrix for W12, one that stays as it is, and a vector."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "toy"}')
    wild = bf16_of(torch.arange(32 * 48) * 37 % 65536).view(32, 48)
    save_file({"a.weight": gaussian(48, 144), "wild": wild, "bias": gaussian(48)}, model / "model.safetensors")
    convert(model, tmp_path / "w12")
    return model, tmp_path / "w12"


def test_every_bit_is_that_of_the_original(folders: tuple[Path, Path]) -> None:
    model, converted = folders
    expected, found = load_file(model / "model.safetensors"), dict(dense_weights(str(converted)))
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(found[name].view(torch.int16), weight.view(torch.int16)), name
    assert is_converted(str(converted))
    assert not is_converted(str(model))


@pytest.mark.parametrize("keep", [0.5, 0.98])
def test_a_truncated_shard_is_named(keep: float, folders: tuple[Path, Path]) -> None:
    (shard,) = folders[1].glob("*.w12.safetensors")
    shard.write_bytes(shard.read_bytes()[: int(keep * shard.stat().st_size)])
    with pytest.raises(IntegrityError, match=shard.name) as caught:
        list(dense_weights(str(folders[1])))
    assert caught.value.code == "LG1203"


def test_a_flipped_bit_is_found(folders: tuple[Path, Path]) -> None:
    (shard,) = folders[1].glob("*.w12.safetensors")
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(bytes(data))
    with pytest.raises(IntegrityError) as caught:
        list(dense_weights(str(folders[1])))
    assert caught.value.code == "LG1204"


def test_a_conversion_that_has_not_ended_is_refused(folders: tuple[Path, Path]) -> None:
    (shard,) = folders[1].glob("*.w12.safetensors")
    shard.unlink()
    with pytest.raises(IntegrityError):
        list(dense_weights(str(folders[1])))
