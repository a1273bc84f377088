"""Folders of drafters: what is written comes back, and what does not fit is refused by its own error."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lossguard.errors import IntegrityError, LossguardError, UsageError
from lossguard_mechanisms.drafters.config import config_for, config_from_json, config_to_json
from lossguard_mechanisms.drafters.fresh import random_drafter
from lossguard_mechanisms.drafters.loading import load_drafter, save_drafter
from lossguard_mechanisms.targets.config import ATTENTION
from lossguard_mechanisms.targets.initial_weights import random_target
from lossguard_mechanisms.targets.manifest import write_manifest
from tests.mechanisms.drafters.small import NAMES, small_config, small_drafter, small_target

TARGET = small_target(dtype=torch.float32)


@pytest.fixture(params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    save_drafter(small_drafter(request.param, TARGET), tmp_path / "drafter", dtype=torch.bfloat16)
    return tmp_path / "drafter"


def test_what_is_written_comes_back(folder: Path) -> None:
    drafter = load_drafter(folder, TARGET)
    expected = small_drafter(drafter.name, TARGET)
    assert drafter.config == small_config(drafter.name)
    assert not drafter.training
    for name, tensor in drafter.state_dict().items():
        assert tensor.dtype == torch.float32
        assert not tensor.requires_grad
        assert torch.equal(tensor, expected.state_dict()[name].to(torch.bfloat16).float()), name


def test_the_target_is_not_stored(folder: Path) -> None:
    names = load_file(folder / "model.safetensors").keys()
    assert not [name for name in names if "target" in name or name.startswith("embedding.")]


@pytest.mark.parametrize("change", ["missing", "unknown", "shape", "cut", "config", "hash"])
def test_what_does_not_fit_is_refused(folder: Path, change: str) -> None:
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    if change == "hash":
        write_manifest(folder, {"seed": 1})
        tensors["norm.weight"] += 1.0
    elif change == "missing":
        del tensors["norm.weight"]
    elif change == "unknown":
        tensors["more"] = torch.zeros(1)
    elif change == "shape":
        tensors["norm.weight"] = torch.zeros(3)
    save_file(tensors, weights)
    if change == "cut":
        weights.write_bytes(weights.read_bytes()[:-8])
    if change == "config":
        (folder / "config.json").write_text("{")
    with pytest.raises(IntegrityError) as caught:
        load_drafter(folder, TARGET)
    assert caught.value.code == {"cut": "LG1403", "config": "LG1403", "hash": "LG1305"}.get(change, "LG1404")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_is_not_there_is_an_error(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(UsageError, match="LG1402"):
        load_drafter(folder, TARGET)


def test_another_target_is_refused(folder: Path) -> None:
    config = TARGET.config
    wider = random_target(replace(config, hidden_size=24), seed=1)
    with pytest.raises(IntegrityError, match="LG1404"):
        load_drafter(folder, wider)
    lower = random_target(replace(config, layer_types=config.layer_types[:2]), seed=1)
    with pytest.raises(UsageError, match="LG1402"):
        load_drafter(folder, lower)


@pytest.mark.parametrize("name", NAMES)
def test_configs_come_back(name: str) -> None:
    config = config_for(name, TARGET.config)
    assert config_from_json(json.loads(json.dumps(config_to_json(config)))) == config


@pytest.mark.parametrize(
    "change",
    [
        {"name": "dflash3"},
        {"num_depths": 0},
        {"num_depths": "many"},
        {"feature_layers": []},
        {"feature_layers": [-1]},
        {"num_key_value_heads": 3},
        {"rank": 0},
        {"conv_groups": 0},
        {"surplus": 1},
    ],
)
def test_configs_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    data = config_to_json(config_for("dflash2", TARGET.config)) | change
    with pytest.raises(LossguardError, match="LG1401"):
        config_from_json(data)


@pytest.mark.parametrize(
    ("num_layers", "expected"),
    [(36, (1, 9, 17, 25, 33)), (32, (1, 8, 15, 22, 29)), (64, (1, 16, 31, 46, 61)), (8, (1, 4, 7)), (1, (0,))],
)
def test_features_come_from_the_layers_of_released_drafters(num_layers: int, expected: tuple[int, ...]) -> None:
    target = replace(TARGET.config, layer_types=(ATTENTION,) * num_layers)
    config = config_for("dflash2", target)
    assert config.feature_layers == expected
    assert config.num_layers == (5 if num_layers > 8 else 3)
    assert config_for("dspark", replace(target, hidden_size=4096)).rank == 256
    if num_layers == 36:
        assert config_for("eagle3", target).feature_layers == (2, 18, 33)


def test_an_unknown_name_is_an_error_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="dspark"):
        config_for("dsparc", TARGET.config)


@pytest.mark.parametrize("name", NAMES)
def test_random_drafters_are_the_same_for_a_seed(name: str) -> None:
    first, again, other = (random_drafter(name, TARGET, seed) for seed in (1, 1, 2))
    assert torch.equal(first.norm.weight, again.norm.weight)
    pairs = [(first.state_dict()[key], again.state_dict()[key], other.state_dict()[key]) for key in first.state_dict()]
    assert all(torch.equal(one, two) for one, two, _ in pairs)
    assert any(not torch.equal(one, three) for one, _, three in pairs)
