"""Weights from and to folders: exact, complete, and checked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from lossguard.errors import IntegrityError, LossguardError, UsageError
from lossguard_mechanisms.targets.fresh import FreshMixing
from lossguard_mechanisms.targets.initial_weights import num_parameters, random_target
from lossguard_mechanisms.targets.manifest import verify_files, write_manifest
from lossguard_mechanisms.targets.weights import load_target, save_target, tensors_of
from tests.mechanisms.targets.tiny import FAMILIES, HYBRIDS, logits_of, pair, random_ids


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    save_target(pair(request.param).ours, tmp_path, dtype=torch.float32)
    return tmp_path


@pytest.mark.parametrize("family", FAMILIES)
def test_the_names_and_values_of_transformers_come_back(family: str) -> None:
    both = pair(family)
    theirs = both.theirs.state_dict()
    ours = tensors_of(both.ours, dtype=torch.float32)
    assert ours.keys() == theirs.keys()
    assert [name for name, tensor in ours.items() if not torch.equal(tensor, theirs[name])] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_loads_what_is_saved(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    ours = pair(family).ours
    save_target(ours, tmp_path, dtype=dtype)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    loaded = load_target(tmp_path, dtype=torch.float32).target
    ids = random_ids(20, seed=0)
    with torch.no_grad():
        expected = theirs(input_ids=ids[None]).logits[0]
    found = logits_of(loaded, ids, torch.arange(20), FreshMixing(1))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3 * float(expected.abs().max()))


def test_loading_is_exact(folder: Path) -> None:
    loaded = load_target(folder, dtype=torch.float32)
    again = tensors_of(loaded.target, dtype=torch.float32)
    saved = load_file(folder / "model.safetensors")
    assert [name for name in saved if not torch.equal(saved[name], again[name])] == []
    assert not any(parameter.requires_grad for parameter in loaded.target.parameters())
    assert loaded.notes == ("no MANIFEST.toml: hashes not checked",)


@pytest.mark.parametrize("family", HYBRIDS)
def test_log_decays_stay_in_float32(family: str, tmp_path: Path) -> None:
    save_target(pair(family).ours, tmp_path, dtype=torch.float32)
    target = load_target(tmp_path, dtype=torch.bfloat16).target
    kinds = {name.rsplit(".", 1)[-1]: parameter.dtype for name, parameter in target.named_parameters()}
    assert kinds["decay_log"] == kinds["decay_bias"] == torch.float32
    assert kinds["conv"] == kinds["weight"] == torch.bfloat16


def test_several_files_and_other_parts(tmp_path: Path) -> None:
    save_target(pair("qwen3_5_text").ours, tmp_path, dtype=torch.float32)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    renamed = {name.replace("model.", "model.language_model.", 1): tensors[name] for name in names[:9]}
    save_file(renamed | {"model.visual.patch": torch.zeros(2)}, tmp_path / "a.safetensors")
    save_file({name: tensors[name] for name in names[9:]} | {"mtp.fc": torch.zeros(2)}, tmp_path / "b.safetensors")
    loaded = load_target(tmp_path, dtype=torch.float32)
    assert tensors_of(loaded.target, dtype=torch.float32).keys() == tensors.keys()
    assert any("2 tensors of other parts" in note for note in loaded.notes)


def broken(folder: Path, change: str) -> None:
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    if change == "missing":
        del tensors["model.norm.weight"]
    elif change == "unknown":
        tensors["model.extra.weight"] = torch.zeros(1)
    elif change == "rows":
        tensors["model.norm.weight"] = torch.zeros(3)
    elif change == "columns":
        tensors["model.embed_tokens.weight"] = torch.zeros(53, 3)
    elif change == "neighbours":
        tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(37, 3)
    save_file(tensors, weights)


@pytest.mark.parametrize("change", ["missing", "unknown", "rows", "columns", "neighbours"])
def test_weights_that_do_not_fit_are_refused(folder: Path, change: str) -> None:
    broken(folder, change)
    with pytest.raises(IntegrityError, match="LG1304"):
        load_target(folder, dtype=torch.float32)


@pytest.mark.parametrize(
    ("name", "content", "kind", "code"),
    [
        ("config.json", None, UsageError, "LG1302"),
        ("model.safetensors", None, UsageError, "LG1302"),
        ("config.json", b"{", IntegrityError, "LG1303"),
        ("model.safetensors", b"short", IntegrityError, "LG1303"),
    ],
)
def test_broken_folders(folder: Path, name: str, content: bytes | None, kind: type[LossguardError], code: str) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(kind, match=code):
        load_target(folder, dtype=torch.float32)


def test_a_manifest_guards_every_file(folder: Path) -> None:
    write_manifest(folder, {"seed": 3, "names": ["a", 'b"'], "bits": {"docs": 1.25, "ok": True}})
    loaded = load_target(folder, dtype=torch.float32)
    assert loaded.notes == ("files checked against MANIFEST.toml",)
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match="LG1305"):
        load_target(folder, dtype=torch.float32)
    path.unlink()
    with pytest.raises(IntegrityError, match=r"model\.safetensors is missing"):
        verify_files(folder)


def test_a_manifest_that_cannot_be_read(folder: Path) -> None:
    (folder / "MANIFEST.toml").write_text("seed = 3\n")
    with pytest.raises(IntegrityError, match="LG1305"):
        load_target(folder, dtype=torch.float32)


@pytest.mark.parametrize("family", FAMILIES)
def test_random_targets_are_the_same_for_a_seed(family: str) -> None:
    config = pair(family).ours.config
    first, second, third = (random_target(config, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], third["embedding.weight"])


def test_the_initial_decays_cover_short_and_long_memories() -> None:
    target = random_target(pair("qwen3_5_text").ours.config, seed=0)
    state = target.state_dict()
    steps = torch.nn.functional.softplus(state["layers.0.mixer.decay_bias"])
    assert bool(((steps > 0.9e-3) & (steps < 1.1e-1)).all())
    rates = state["layers.0.mixer.decay_log"].exp()
    assert bool(((rates >= 1.0) & (rates <= 16.0)).all())
    assert num_parameters(target) == sum(tensor.numel() for tensor in state.values())
