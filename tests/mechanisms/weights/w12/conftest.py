"""Small models on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.mechanisms.weights.w12.converted_folders import hashes
from tests.mechanisms.weights.w12.toy_weights import bf16_of, gaussian

MakeModel = Callable[[Mapping[str, Mapping[str, Tensor]]], Path]


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """Writes a model folder with the given shards (file name -> tensors)."""

    def make(shards: Mapping[str, Mapping[str, Tensor]]) -> Path:
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "toy", "hidden_size": 64}')
        (folder / "tokenizer.json").write_text("{}")
        for name, tensors in shards.items():
            save_file(dict(tensors), folder / name)
        if len(shards) > 1:
            weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return folder

    return make


@pytest.fixture
def two_shards(make_model: MakeModel) -> Path:
    """A model in two shards, with a matrix that must stay raw, vectors, and a mask."""
    wild = bf16_of(torch.arange(32 * 48) * 37 % 65536).view(32, 48)
    first = {"a.weight": gaussian(48, 144), "a.bias": gaussian(48), "mask": torch.tensor([True, False, True])}
    second = {"b.weight": gaussian(47, 143, seed=1), "wild": wild, "scale": torch.tensor(0.5), "f": torch.ones(4, 4)}
    return make_model({"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second})


@pytest.fixture
def source_stays_untouched(two_shards: Path) -> Iterator[None]:
    """Whatever a test does, the model is what it was; a test that changes it on purpose leaves a file ``touched``."""
    before = hashes(two_shards)
    yield
    if (two_shards / "touched").exists():
        return
    assert hashes(two_shards) == before
