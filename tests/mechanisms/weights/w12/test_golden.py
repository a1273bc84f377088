"""The format on disk: what version 1 has written must be read for ever, and is written byte for byte."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import torch
from safetensors.torch import load_file

from lossguard_mechanisms.weights.w12 import naive
from lossguard_mechanisms.weights.w12.convert import convert
from lossguard_mechanisms.weights.w12.layout import VERSION
from lossguard_mechanisms.weights.w12.shard_reader import opened_w12
from lossguard_mechanisms.weights.w12.verify import verify
from lossguard_mechanisms.weights.w12.w12_tensor import W12Tensor
from tests.mechanisms.weights.w12.toy_weights import golden_tensors, patterns_of

FOLDER = Path(__file__).resolve().parents[4] / "fixtures" / "w12-format"
MODEL, CONVERTED = FOLDER / "model", FOLDER / "w12-1"
SHARD = "model.w12.safetensors"


def test_the_files_are_those_of_the_manifest() -> None:
    manifest = tomllib.loads((FOLDER / "MANIFEST.toml").read_text(encoding="utf-8"))
    files = [path for path in sorted(FOLDER.rglob("*")) if path.is_file() and path.name != "MANIFEST.toml"]
    found = {path.relative_to(FOLDER).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert found == manifest["sha256"]


def test_the_original_is_what_the_formula_gives() -> None:
    stored = load_file(MODEL / "model.safetensors")
    expected = golden_tensors()
    assert stored.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(stored[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


def test_it_is_read_bit_for_bit() -> None:
    report = verify(CONVERTED, MODEL)
    assert report.is_equal
    assert report.num_tensors == 5


def test_it_is_written_byte_for_byte(tmp_path: Path) -> None:
    assert VERSION == 1, "a new version needs a golden of its own beside this one"
    convert(MODEL, tmp_path / "out")
    names = {path.name for path in CONVERTED.iterdir()}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert {
        name for name in names if (tmp_path / "out" / name).read_bytes() != (CONVERTED / name).read_bytes()
    } == set()


def test_the_reference_agrees_with_every_stored_array() -> None:
    original = golden_tensors()
    with opened_w12(CONVERTED / SHARD) as shard:
        kinds = {name: entry.is_w12 for name, entry in shard.metadata.tensors.items()}
        coded = {name: shard.stored(name) for name, is_w12 in kinds.items() if is_w12}
    assert coded.keys() == {"narrow.weight", "rows.weight"}
    for name, stored in coded.items():
        assert isinstance(stored, W12Tensor)
        base = stored.base.tolist()[: original[name].shape[0]]
        expected = naive.encode(patterns_of(original[name]), base)
        assert bytes(stored.hi.reshape(-1).tolist()) == expected.hi
        assert bytes(stored.lo.reshape(-1).tolist()) == expected.lo
        assert stored.escape_start.tolist() == list(expected.escape_start)
        assert stored.escape_place.tolist() == list(expected.escape_place)
        assert [bits & 0xFFFF for bits in stored.escape_bits.tolist()] == list(expected.escape_bits)


def test_it_covers_what_the_format_has() -> None:
    with opened_w12(CONVERTED / SHARD) as shard:
        narrow, rows = shard.stored("narrow.weight"), shard.stored("rows.weight")
    assert isinstance(narrow, W12Tensor)
    assert isinstance(rows, W12Tensor)
    assert (narrow.base.numel(), rows.base.numel()) == (1, 48)
    assert rows.num_escapes == 8, "in each of the three bands"
    assert (rows.escape_start.diff() > 0).all()
    assert rows.layout.padded_columns % 128 not in (0, rows.layout.columns % 128), "a padded tile at the end of a band"
