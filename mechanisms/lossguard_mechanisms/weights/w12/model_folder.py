"""A folder with a model in safetensors, read only."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossguard_mechanisms.weights.w12.failures import nothing_to_convert, unreadable, unusable_source
from lossguard_mechanisms.weights.w12.shard_reader import opened

CONFIG_NAME = "config.json"
_WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})
_INDEX_SUFFIX = ".index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """``shards`` hold the weights; ``side_files`` are all other files (tokenizer, templates, licence)."""

    path: Path
    config: dict[str, Any]
    shards: tuple[Path, ...]
    side_files: tuple[Path, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.stat().st_size for shard in self.shards)


def open_model(path: Path) -> ModelFolder:
    """Look at a folder. Raises UsageError LG1207, or IntegrityError LG1203 for a damaged JSON file."""
    if not path.is_dir():
        raise unusable_source(path, "there is no such folder")
    config_path = path / CONFIG_NAME
    if not config_path.is_file():
        raise unusable_source(path, f"it has no {CONFIG_NAME}")
    config = read_object(config_path)
    if "quantization_config" in config:
        raise unusable_source(path, f"its {CONFIG_NAME} has a quantization_config: it is quantized already")
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    shards = tuple(file for file in files if file.suffix == ".safetensors")
    if not shards:
        raise unusable_source(path, "it has no *.safetensors")
    for index in (file for file in files if file.name.endswith(".safetensors" + _INDEX_SUFFIX)):
        missing = _named_in(index) - {shard.name for shard in shards}
        if missing:
            raise unusable_source(path, f"{index.name} names files that are missing: {', '.join(sorted(missing))}")
    side = (file for file in files if file.suffix not in _WEIGHT_SUFFIXES and not file.name.endswith(_INDEX_SUFFIX))
    return ModelFolder(path=path, config=config, shards=shards, side_files=tuple(side))


def require_bf16_matrix(folder: ModelFolder) -> None:
    """Read all headers. Raises UsageError LG1206 if no tensor could become W12, IntegrityError LG1203 if truncated."""
    found: Counter[str] = Counter()
    for shard in folder.shards:
        with opened(shard) as file:
            for name in file.keys():  # noqa: SIM118  (not a mapping)
                part = file.get_slice(name)
                kind = "matrices" if len(part.get_shape()) > 1 else "vectors"
                found[f"{part.get_dtype()} {kind}"] += 1
    if not found["BF16 matrices"]:
        listing = ", ".join(f"{count} {kind}" for kind, count in sorted(found.items()) if count) or "no tensors"
        raise nothing_to_convert(folder.path, listing)


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds one object. Raises IntegrityError LG1203."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise unreadable(path, str(error)) from error
    if not isinstance(data, dict):
        raise unreadable(path, "it does not hold one JSON object")
    return data


def _named_in(index: Path) -> set[str]:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise unreadable(index, "it has no weight_map")
    return {str(name) for name in weight_map.values()}
