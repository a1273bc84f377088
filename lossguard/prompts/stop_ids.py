"""Which tokens end a reply, as the model's folder declares them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lossguard.errors import UsageError


def stop_ids_of(model_path: Path) -> tuple[int, ...]:
    """End-of-sequence ids that the model declares, generation_config.json before config.json; () if none is declared.

    Raises UsageError (LG0425) where a file cannot be read or the ids are no integers.
    """
    for name in ("generation_config.json", "config.json"):
        path = model_path / name
        if not path.is_file():
            continue
        declared = _eos_field(path)
        ids = declared if isinstance(declared, list) else [declared]
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids if token is not None):
            raise _bad_eos(path, f"eos_token_id is {declared!r}")
        found = tuple(dict.fromkeys(token for token in ids if token is not None))
        if found:
            return found
    return ()


def _eos_field(path: Path) -> Any:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _bad_eos(path, str(error)) from error
    if not isinstance(data, Mapping):
        raise _bad_eos(path, "it is no JSON object")
    if data.get("eos_token_id") is None and isinstance(data.get("text_config"), Mapping):
        return data["text_config"].get("eos_token_id")
    return data.get("eos_token_id")


def _bad_eos(path: Path, problem: str) -> UsageError:
    return UsageError(
        f"{path}: the end-of-sequence ids cannot be read: {problem}",
        why="the structure check needs to know which tokens end a reply",
        fix='write "eos_token_id": an integer or a list of integers',
        code="LG0425",
    )
