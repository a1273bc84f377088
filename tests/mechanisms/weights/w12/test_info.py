"""Figures of a converted model, against counts made here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lossguard.errors import StorageError
from lossguard_mechanisms.weights.w12.codec import encode
from lossguard_mechanisms.weights.w12.convert import convert
from lossguard_mechanisms.weights.w12.info import exponent_counts, model_info
from lossguard_mechanisms.weights.w12.plot import write_plot


@pytest.fixture
def converted(two_shards: Path, tmp_path: Path) -> Path:
    """The converted model."""
    convert(two_shards, tmp_path / "out")
    return tmp_path / "out"


def test_figures_are_those_of_the_stored_parts(converted: Path, two_shards: Path) -> None:
    info = model_info(converted)
    weights = {**load_file(two_shards / "model-00001-of-00002.safetensors")}
    weights |= load_file(two_shards / "model-00002-of-00002.safetensors")
    chosen = {name: encode(weights[name]) for name in ("a.weight", "b.weight")}
    for tensor in info.tensors:
        if tensor.is_w12:
            coded = chosen[tensor.name]
            assert tensor.bits_per_weight == pytest.approx(coded.bits_per_weight)
            assert tensor.num_escapes == coded.num_escapes
            assert tensor.has_base_per_row == (coded.base.numel() > 1)
        else:
            assert tensor.bits_per_weight == 8 * weights[tensor.name].element_size()
    num_weights = sum(weights[name].numel() for name in chosen)
    assert info.bits_per_w12_weight == pytest.approx(8 * sum(one.num_bytes for one in chosen.values()) / num_weights)
    assert info.escape_fraction == sum(one.num_escapes for one in chosen.values()) / num_weights
    assert info.num_file_bytes == sum(path.stat().st_size for path in converted.glob("*.safetensors"))


def test_json_holds_the_same(converted: Path) -> None:
    info = model_info(converted)
    data = json.loads(json.dumps(info.to_json()))
    assert data["bits_per_w12_weight"] == info.bits_per_w12_weight
    assert [one["name"] for one in data["tensors"]] == [one.name for one in info.tensors]
    assert all(one["bits_per_weight"] > 0 for one in data["tensors"])


def test_exponents_are_counted(converted: Path, two_shards: Path) -> None:
    first = load_file(two_shards / "model-00001-of-00002.safetensors")["a.weight"]
    second = load_file(two_shards / "model-00002-of-00002.safetensors")["b.weight"]
    flat = torch.cat([weight.view(torch.int16).reshape(-1) for weight in (first, second)])
    expected = torch.bincount(flat >> 7 & 0xFF, minlength=256).tolist()
    assert exponent_counts(converted) == expected


def test_the_plot_is_the_same_for_the_same_model(converted: Path, tmp_path: Path) -> None:
    info, counts = model_info(converted), exponent_counts(converted)
    assert write_plot(tmp_path / "one.svg", info, counts) is None
    assert write_plot(tmp_path / "two.svg", info, counts) is None
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    assert "bits per weight" in text


def test_without_matplotlib_there_is_a_reason(converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    problem = write_plot(tmp_path / "plot.svg", model_info(converted), [0] * 256)
    assert problem is not None
    assert "matplotlib" in problem
    assert not (tmp_path / "plot.svg").exists()


def test_a_plot_that_cannot_be_written_is_an_error(converted: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        write_plot(tmp_path / "absent" / "plot.svg", model_info(converted), [1] * 256)
    assert caught.value.code == "LG1205"
