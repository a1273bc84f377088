"""What a model's folder says about it without loading its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossguard.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts from ``config.json`` and ``generation_config.json``."""

    vocab_size: int
    max_positions: int | None
    dtype: str
    eos_ids: tuple[int, ...]
    pad_id: int


def read_model_facts(model_path: str) -> ModelFacts:
    """Read a model folder. Raises UsageError LG0206 if there is no usable ``config.json``."""
    folder = Path(model_path)
    config = _read_json(folder / "config.json")
    text = _text_part(config)
    generation = _read_json(folder / "generation_config.json") if (folder / "generation_config.json").exists() else {}
    if not isinstance(text.get("vocab_size"), int):
        raise _unusable(f"{folder / 'config.json'} has no vocab_size")
    eos_ids = _ids(generation.get("eos_token_id")) or _ids(text.get("eos_token_id")) or _ids(config.get("eos_token_id"))
    return ModelFacts(
        vocab_size=text["vocab_size"],
        max_positions=text.get("max_position_embeddings"),
        dtype=str(_first(text, config, key="dtype") or _first(text, config, key="torch_dtype") or "float32"),
        eos_ids=eos_ids,
        pad_id=_pad_id(text, generation, eos_ids),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unusable(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise _unusable(f"{path} is not a JSON object")
    return data


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Multi-modal models keep the language model's facts in a table of its own."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) and "vocab_size" in nested else config


def _first(*tables: Mapping[str, Any], key: str) -> Any:
    return next((table[key] for table in tables if table.get(key) is not None), None)


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


def _pad_id(text: Mapping[str, Any], generation: Mapping[str, Any], eos_ids: tuple[int, ...]) -> int:
    """Any id of the vocabulary will do, since padding is masked; the model's own choice comes first."""
    own = _ids(_first(generation, text, key="pad_token_id"))
    return next((token for token in (*own, *eos_ids) if token >= 0), 0)


def _unusable(found: str) -> UsageError:
    return UsageError(
        found,
        why="the engine must know the vocabulary and the context length before it serves anything",
        fix="give 'model' a Hugging Face model folder (config.json, tokenizer.json, *.safetensors)",
        code="LG0206",
    )
