"""Files: headers that fit whatever the names, metadata that are read back, and damage that is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from lossguard.errors import IntegrityError
from lossguard_mechanisms.weights.w12.metadata import ShardMetadata, TensorEntry, parse
from lossguard_mechanisms.weights.w12.policy import decide
from lossguard_mechanisms.weights.w12.shard_reader import opened_w12
from lossguard_mechanisms.weights.w12.shard_writer import DTYPE_NAMES, ShardWriter, digest_of
from tests.mechanisms.weights.w12.toy_weights import gaussian

NAMES = ["a", "model.layers.17.mlp.up_proj.weight", 'quote"d', "back\\slash", "名前" * 40, "x" * 5000, ""]


def write_shard(path: Path, weights: dict[str, torch.Tensor]) -> None:
    entries = {}
    with ShardWriter(path, weights) as writer:
        for name, weight in weights.items():
            coded = decide(weight).coded
            parts = {"raw": weight} if coded is None else coded.parts()
            writer.add({name if part == "raw" else f"{name}_w12_{part}": array for part, array in parts.items()})
            entries[name] = TensorEntry(
                is_w12=coded is not None,
                dtype=DTYPE_NAMES[weight.dtype],
                shape=tuple(weight.shape),
                num_escapes=0 if coded is None else coded.num_escapes,
                reason="r" * 150,
                sha256=digest_of(parts),
            )
        metadata = ShardMetadata(source_name="s", source_sha256="0" * 64, tensors=entries)
        writer.finish(metadata.to_text())


def test_headers_fit_for_any_name(tmp_path: Path) -> None:
    weights = {name: gaussian(16, 128, seed=number) for number, name in enumerate(NAMES)}
    path = tmp_path / "a.w12.safetensors"
    write_shard(path, weights)
    with opened_w12(path) as shard:
        for name, weight in weights.items():
            assert torch.equal(shard.dense(name), weight)


@pytest.mark.parametrize("name", NAMES)
def test_headers_fit_for_one_tensor(name: str, tmp_path: Path) -> None:
    path, weight = tmp_path / "a.w12.safetensors", gaussian(16, 128)
    write_shard(path, {name: weight})
    with opened_w12(path) as shard:
        assert torch.equal(shard.dense(name), weight)


@pytest.mark.parametrize("dtype", DTYPE_NAMES, ids=str)
def test_raw_tensors_of_every_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    raw = torch.arange(8, dtype=torch.uint8).view(torch.uint8) % 2
    tensor = raw.repeat(4).view(dtype) if dtype != torch.bool else raw.to(torch.bool)
    path = tmp_path / "a.w12.safetensors"
    write_shard(path, {"t": tensor, "empty": torch.empty(0, 3)})
    found = load_file(path)
    assert found["t"].dtype == dtype
    assert torch.equal(found["t"].view(torch.uint8), tensor.view(torch.uint8))
    assert found["empty"].shape == (0, 3)
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["format"] == "pt"


def test_a_file_that_was_not_finished_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.w12.safetensors"
    path.write_text("old")
    with ShardWriter(path, ["a"]) as writer:
        writer.add({"a": torch.zeros(1000)})  # and never finished
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "old"


def test_an_ordinary_file_is_no_w12_file(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(4)}, tmp_path / "a.safetensors")
    with pytest.raises(IntegrityError, match="has no 'w12'") as caught, opened_w12(tmp_path / "a.safetensors"):
        pass
    assert caught.value.code == "LG1209"


GOOD = {
    "is_w12": False, "dtype": "F32", "shape": [4], "num_escapes": 0, "reason": "raw", "sha256": "0" * 64
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        json.dumps({"version": 2}),
        json.dumps({"version": 1, "source": {}, "tensors": {}}),
        json.dumps({"version": 1, "source": {"name": "s", "sha256": "0"}, "tensors": {"a": {**GOOD, "shape": "x"}}}),
        json.dumps({"version": 1, "source": {"name": "s", "sha256": "0"}, "tensors": {"a": {**GOOD, "more": 1}}}),
        json.dumps({"version": 1, "source": {"name": "s", "sha256": "0"}, "tensors": {"a": {**GOOD, "is_w12": 1}}}),
    ],
)
def test_damaged_metadata_are_named(text: str) -> None:
    with pytest.raises(IntegrityError, match=r"x\.safetensors") as caught:
        parse(Path("x.safetensors"), {"w12": text})
    assert caught.value.code == "LG1209"


def test_metadata_that_list_other_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.w12.safetensors"
    entry = TensorEntry(is_w12=False, dtype="F32", shape=(4,), num_escapes=0, reason="", sha256="0" * 64)
    metadata = ShardMetadata(source_name="s", source_sha256="0" * 64, tensors={"b": entry})
    with ShardWriter(path, ["a"]) as writer:
        writer.add({"a": torch.zeros(4)})
        writer.finish(metadata.to_text())
    with pytest.raises(IntegrityError, match="arrays are not those") as caught, opened_w12(path):
        pass
    assert caught.value.code == "LG1209"


@pytest.mark.parametrize("part", ["hi", "lo", "escape_start", "escape_place", "escape_bits", "base"])
def test_parts_that_do_not_fit_are_refused(part: str, tmp_path: Path) -> None:
    """Each part cut by one entry, with a checksum that matches: a writer with a fault, not damage."""
    weight = gaussian(32, 256)
    weight[3, 3:9] = float("inf")
    coded = decide(weight).coded
    assert coded is not None
    parts = coded.parts()
    parts[part] = parts[part].reshape(-1)[:-1]
    entry = TensorEntry(
        is_w12=True, dtype="BF16", shape=(32, 256), num_escapes=coded.num_escapes, reason="", sha256=digest_of(parts)
    )
    path = tmp_path / "a.w12.safetensors"
    metadata = ShardMetadata(source_name="s", source_sha256="0" * 64, tensors={"a": entry})
    with ShardWriter(path, ["a"]) as writer:
        writer.add({f"a_w12_{name}": array for name, array in parts.items()})
        writer.finish(metadata.to_text())
    with opened_w12(path) as shard, pytest.raises(IntegrityError) as caught:
        shard.stored("a")
    assert caught.value.code == "LG1209"


@pytest.mark.parametrize(
    ("part", "values"),
    [("escape_place", [-1]), ("escape_place", [128]), ("escape_place", [15 << 24]), ("escape_start", [5])],
)
def test_escapes_outside_the_matrix_are_refused(part: str, values: list[int]) -> None:
    weight = gaussian(15, 128)
    weight[0, 0] = float("nan")
    coded = decide(weight).coded
    assert coded is not None
    parts = coded.parts()
    parts[part] = torch.cat((torch.tensor(values, dtype=torch.int32), parts[part][1:]))
    with pytest.raises(IntegrityError) as caught:
        type(coded)(shape=coded.shape, **parts).require_consistent(Path("x"))
    assert caught.value.code == "LG1209"
