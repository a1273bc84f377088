"""Facts of model folders: which files count, and what makes two folders the same model."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lossguard.errors import IntegrityError, UsageError
from lossguard.file_hashes import HashCache
from lossguard.model_facts import chat_template_sha256, model_facts, revision, weight_files

SNAPSHOT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"first")
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"second")
    (folder / "config.json").write_text('{"hidden_size": 64}')
    (folder / "tokenizer.json").write_text('{"model": {}}')
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> HashCache:
    return HashCache(tmp_path / "cache")


def test_a_copy_is_the_same_model(tmp_path: Path, model: Path, cache: HashCache) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    assert model_facts(model, cache) == model_facts(copy, cache)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda folder: (folder / "model-00002-of-00002.safetensors").write_bytes(b"sec0nd"), "weights_sha256"),
        (lambda folder: (folder / "model-00003-of-00003.safetensors").write_bytes(b"third"), "weights_sha256"),
        (lambda folder: (folder / "config.json").write_text("{}"), "config_sha256"),
        (lambda folder: (folder / "generation_config.json").write_text("{}"), "config_sha256"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer_sha256"),
        (lambda folder: (folder / "chat_template.jinja").write_text("{{ other }}"), "chat_template_sha256"),
    ],
)
def test_one_change_changes_one_fact(
    model: Path, cache: HashCache, change: Callable[[Path], object], fact: str
) -> None:
    before = model_facts(model, cache)
    change(model)
    after = model_facts(model, cache)
    assert {key for key in before if before[key] != after[key]} == {fact}


def test_safetensors_win_over_other_formats(model: Path) -> None:
    (model / "model.gguf").write_bytes(b"other")
    pattern, files = weight_files(model)
    assert pattern == "*.safetensors"
    assert len(files) == 2


def test_a_folder_without_weights_is_refused(tmp_path: Path, cache: HashCache) -> None:
    with pytest.raises(UsageError, match="LG0104"):
        model_facts(tmp_path, cache)


def test_a_folder_with_weights_only(tmp_path: Path, cache: HashCache) -> None:
    (tmp_path / "model.gguf").write_bytes(b"weights and tokenizer in one")
    facts = model_facts(tmp_path, cache)
    assert facts["weights_format"] == "gguf"
    assert facts["tokenizer_sha256"] is facts["chat_template_sha256"] is facts["config_sha256"] is None


def test_revision_is_the_name_of_a_snapshot_folder(tmp_path: Path) -> None:
    assert revision(tmp_path / "snapshots" / SNAPSHOT) == SNAPSHOT
    assert revision(tmp_path / "model") is None


def test_chat_template_is_hashed_as_text_wherever_it_stands(model: Path) -> None:
    expected = hashlib.sha256(b"{{ messages }}").hexdigest()
    assert chat_template_sha256(model) == expected
    (model / "tokenizer_config.json").unlink()
    assert chat_template_sha256(model) is None
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert chat_template_sha256(model) == expected


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_tokenizer_config_is_refused(model: Path, content: str) -> None:
    (model / "tokenizer_config.json").write_text(content)
    with pytest.raises(IntegrityError, match="LG0105"):
        chat_template_sha256(model)
