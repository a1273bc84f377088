"""Conversion of model folders: complete, and never at the source's expense. Stopped ones are in ``test_resume``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors import safe_open
from safetensors.torch import save_file

from lossguard.errors import IntegrityError, LossguardError, UsageError
from lossguard_mechanisms.weights.w12 import convert as convert_module
from lossguard_mechanisms.weights.w12.conversion_record import read_record
from lossguard_mechanisms.weights.w12.convert import convert
from lossguard_mechanisms.weights.w12.info import model_info
from lossguard_mechanisms.weights.w12.policy import decide
from lossguard_mechanisms.weights.w12.verify import verify
from tests.mechanisms.weights.w12.converted_folders import FIRST, SECOND, hashes
from tests.mechanisms.weights.w12.toy_weights import gaussian

pytestmark = pytest.mark.usefixtures("source_stays_untouched")


def test_every_bit_and_every_file_arrives(two_shards: Path, tmp_path: Path) -> None:
    result = convert(two_shards, tmp_path / "out")
    assert (result.num_written, result.num_kept) == (2, 0)
    report = verify(tmp_path / "out", two_shards)
    assert report.is_equal
    assert (report.num_tensors, report.num_files) == (7, 2)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    shards = {f"{FIRST}.w12.safetensors", f"{SECOND}.w12.safetensors"}
    assert names == shards | {"config.json", "tokenizer.json", "w12.json"}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"] == {"quant_method": "w12", "version": 1}
    assert config["hidden_size"] == 64


def test_each_tensor_says_what_became_of_it(two_shards: Path, tmp_path: Path) -> None:
    convert(two_shards, tmp_path / "out")
    found = {tensor.name: tensor for tensor in model_info(tmp_path / "out").tensors}
    assert {name for name, tensor in found.items() if tensor.is_w12} == {"a.weight", "b.weight"}
    assert "would escape" in found["wild"].reason
    assert "float32" in found["scale"].reason


def test_arrays_start_where_their_items_may(two_shards: Path, tmp_path: Path) -> None:
    """Kernels read the mapped file: planes start at multiples of 64, all others at multiples of their item."""
    convert(two_shards, tmp_path / "out")
    path = tmp_path / "out" / f"{SECOND}.w12.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert (8 + length) % 64 == 0
    sizes = {"I32": 4, "I16": 2, "BF16": 2, "F32": 4, "U8": 1, "BOOL": 1}
    header = json.loads(data[8 : 8 + length])
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    assert all(entry["data_offsets"][0] % sizes[entry["dtype"]] == 0 for entry in entries.values())
    assert entries["b.weight_w12_hi"]["data_offsets"][0] % 64 == 0
    with safe_open(path, framework="pt") as file:
        assert file.get_tensor("b.weight_w12_hi").shape == (3, 16 * 144)


def test_the_same_model_gives_the_same_bytes(two_shards: Path, tmp_path: Path) -> None:
    convert(two_shards, tmp_path / "one")
    convert(two_shards, tmp_path / "two")
    assert hashes(tmp_path / "one") == hashes(tmp_path / "two")


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_a_truncated_source_is_named(keep: int, two_shards: Path, tmp_path: Path) -> None:
    shard = two_shards / f"{SECOND}.safetensors"
    shard.write_bytes(shard.read_bytes()[:keep])
    (two_shards / "touched").touch()
    with pytest.raises(IntegrityError, match=shard.name) as caught:
        convert(two_shards, tmp_path / "out")
    assert caught.value.code == "LG1203"
    assert not (tmp_path / "out").exists()


def refused(source: Path, target: Path) -> str:
    with pytest.raises(LossguardError) as caught:
        convert(source, target)
    return caught.value.code


def test_sources_that_cannot_be_converted(two_shards: Path, tmp_path: Path) -> None:
    (two_shards / "touched").touch()
    out = tmp_path / "out"
    assert refused(tmp_path / "absent", out) == "LG1207"
    (two_shards / f"{FIRST}.safetensors").rename(tmp_path / "away")
    assert refused(two_shards, out) == "LG1207", "a shard that the index names is missing"
    (two_shards / f"{SECOND}.safetensors").unlink()
    (two_shards / "model.safetensors.index.json").unlink()
    assert refused(two_shards, out) == "LG1207", "no weights at all"
    (tmp_path / "away").rename(two_shards / "model.safetensors")
    (two_shards / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    assert refused(two_shards, out) == "LG1207", "quantized already"
    (two_shards / "config.json").unlink()
    assert refused(two_shards, out) == "LG1207"
    assert not out.exists()


def test_a_model_of_another_dtype_is_refused(two_shards: Path, tmp_path: Path) -> None:
    folder = tmp_path / "half"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"a": torch.zeros(16, 16, dtype=torch.float16), "b": gaussian(16)}, folder / "model.safetensors")
    with pytest.raises(UsageError, match="1 BF16 vectors, 1 F16 matrices") as caught:
        convert(folder, tmp_path / "out")
    assert caught.value.code == "LG1206"
    assert not (tmp_path / "out").exists()


def test_targets_that_are_not_ours_stay_as_they_are(two_shards: Path, tmp_path: Path) -> None:
    assert refused(two_shards, two_shards) == "LG1208"
    assert refused(two_shards, two_shards / "sub") == "LG1208"
    file = tmp_path / "file"
    file.write_text("mine")
    assert refused(two_shards, file) == "LG1208"
    full = tmp_path / "full"
    full.mkdir()
    (full / "precious").write_text("mine")
    assert refused(two_shards, full) == "LG1208"
    assert file.read_text() == (full / "precious").read_text() == "mine"


def test_another_limit_does_not_continue_a_conversion(two_shards: Path, tmp_path: Path) -> None:
    convert(two_shards, tmp_path / "out")
    with pytest.raises(UsageError, match=r"limit of 0\.02") as caught:
        convert(two_shards, tmp_path / "out", escape_limit=0.01)
    assert caught.value.code == "LG1208"


def test_other_weights_do_not_continue_a_conversion(two_shards: Path, tmp_path: Path) -> None:
    convert(two_shards, tmp_path / "out")
    (two_shards / "touched").touch()
    shard = two_shards / f"{FIRST}.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert refused(two_shards, tmp_path / "out") == "LG1211"


def test_a_source_that_changes_meanwhile_is_noticed(
    two_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meddling(weight: torch.Tensor, limit: float) -> object:
        os.utime(two_shards / f"{FIRST}.safetensors", (1, 1))
        return decide(weight, limit)

    monkeypatch.setattr(convert_module, "decide", meddling)
    assert refused(two_shards, tmp_path / "out") == "LG1207"
    assert read_record(tmp_path / "out").shards == {}


def test_two_conversions_do_not_write_into_one_folder(two_shards: Path, tmp_path: Path) -> None:
    convert(two_shards, tmp_path / "out")
    with FileLock(tmp_path / "out" / ".w12.lock"):
        assert refused(two_shards, tmp_path / "out") == "LG1208"


def test_a_damaged_record_is_named(two_shards: Path, tmp_path: Path) -> None:
    convert(two_shards, tmp_path / "out")
    (tmp_path / "out" / "w12.json").write_text("{")
    assert refused(two_shards, tmp_path / "out") == "LG1203"
    (tmp_path / "out" / "w12.json").write_text('{"format": "lossguard-w12", "version": 2}')
    assert refused(two_shards, tmp_path / "out") == "LG1209"
