"""What a model folder is: hashes of weights, config, tokenizer and chat template, and its revision."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from lossguard.errors import IntegrityError, UsageError
from lossguard.file_hashes import HashCache, combined_sha256

WEIGHT_PATTERNS = ("*.safetensors", "*.gguf", "*.bin", "*.pt")
"""In order of preference: a folder with several formats is read by its first."""

CONFIG_FILES = ("config.json", "generation_config.json", "quantization_config.json")
TOKENIZER_FILES = (
    "added_tokens.json", "merges.txt", "special_tokens_map.json", "spiece.model", "tokenizer.json", "tokenizer.model",
    "tokenizer_config.json", "vocab.json", "vocab.txt",
)  # fmt: skip
REVISION_NAME = re.compile(r"[0-9a-f]{40}")


def model_facts(folder: Path, hashes: HashCache) -> dict[str, Any]:
    """Facts of a model folder as JSON values; None where the folder does not say.

    ``tokenizer_sha256`` is None where the tokenizer is inside the weights (GGUF). Raises UsageError LG0104.
    """
    pattern, weights = weight_files(folder)
    return {
        "revision": revision(folder),
        "weights_format": pattern.removeprefix("*."),
        "weights_sha256": combined_sha256(hashes.sha256(path) for path in weights),
        "config_sha256": _named_sha256(folder, CONFIG_FILES),
        "tokenizer_sha256": _named_sha256(folder, TOKENIZER_FILES),
        "chat_template_sha256": chat_template_sha256(folder),
    }


def weight_files(folder: Path) -> tuple[str, list[Path]]:
    """The pattern that was chosen, and the weight files of a folder. Raises UsageError LG0104 if it has none."""
    for pattern in WEIGHT_PATTERNS:
        found = sorted(folder.glob(pattern))
        if found:
            return pattern, found
    raise UsageError(
        f"{folder} holds no weights ({', '.join(WEIGHT_PATTERNS)})",
        why="a verdict names the weights that it speaks about by their hash",
        fix="give the folder that holds config.json and the weight files, after a complete download",
        code="LG0104",
    )


def revision(folder: Path) -> str | None:
    """The commit of a hub snapshot, which names its folder after it; None for any other folder."""
    name = folder.absolute().name  # not resolved: the files of a snapshot are links, its folder is not
    return name if REVISION_NAME.fullmatch(name) else None


def chat_template_sha256(folder: Path) -> str | None:
    """Hash of the chat template's text, from its own file or from the tokenizer's config; None without one."""
    template_file = folder / "chat_template.jinja"
    if template_file.is_file():
        return hashlib.sha256(template_file.read_bytes()).hexdigest()
    config_file = folder / "tokenizer_config.json"
    if not config_file.is_file():
        return None
    try:
        template = json.loads(config_file.read_text(encoding="utf-8")).get("chat_template")
    except (ValueError, AttributeError) as error:
        raise IntegrityError(
            f"{config_file} is not a JSON object: {error}",
            why="the chat template decides which tokens every prompt becomes",
            fix="download the tokenizer files again",
            code="LG0105",
        ) from error
    if template is None:
        return None
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _named_sha256(folder: Path, names: tuple[str, ...]) -> str | None:
    parts = [
        f"{name} {hashlib.sha256((folder / name).read_bytes()).hexdigest()}"
        for name in names
        if (folder / name).is_file()
    ]
    return combined_sha256(parts) if parts else None
