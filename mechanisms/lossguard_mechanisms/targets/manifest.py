"""``MANIFEST.toml`` of a committed model: how it was made, and the hash of each of its files."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from lossguard.errors import IntegrityError
from lossguard.models import sha256_of_file

MANIFEST_NAME = "MANIFEST.toml"

Scalar = str | int | float | bool
Value = Scalar | Sequence[Scalar] | Mapping[str, Scalar | Sequence[Scalar]]


def write_manifest(folder: Path, facts: Mapping[str, Value]) -> None:
    """Write ``facts`` and the hashes of all other files of the folder; a nested mapping becomes a table."""
    files = {path.name: sha256_of_file(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST_NAME}
    lines = [f"{_quoted(name)} = {_quoted(value)}" for name, value in facts.items() if not isinstance(value, Mapping)]
    tables = {name: value for name, value in facts.items() if isinstance(value, Mapping)}
    for name, table in (*tables.items(), ("files", files)):
        lines += ["", f"[{_quoted(name)}]", *(f"{_quoted(key)} = {_quoted(value)}" for key, value in table.items())]
    (folder / MANIFEST_NAME).write_text("\n".join(lines) + "\n", encoding="utf-8")


def verify_files(folder: Path) -> None:
    """Compare the folder's files with its manifest. Raises IntegrityError LG1305 if one is missing or differs."""
    path = folder / MANIFEST_NAME
    try:
        expected: Mapping[str, str] = tomllib.loads(path.read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError) as error:
        raise _differs(folder, f"{MANIFEST_NAME} cannot be read: {error!r}") from error
    for name, digest in expected.items():
        if not (folder / name).is_file():
            raise _differs(folder, f"{name} is missing")
        if sha256_of_file(folder / name) != digest:
            raise _differs(folder, f"{name} has another SHA-256 than {MANIFEST_NAME} says")


def _quoted(value: Scalar | Sequence[Scalar]) -> str:
    """JSON's form of strings, numbers, booleans and arrays of them is also TOML's."""
    return json.dumps(value if isinstance(value, (str, int, float)) else list(value), ensure_ascii=True)


def _differs(folder: Path, problem: str) -> IntegrityError:
    return IntegrityError(
        f"the model in {folder} is not the committed one: {problem}",
        why="a changed weight would change every token without a trace",
        fix="take the folder from the repository again, or write its manifest anew if the change is meant",
        code="LG1305",
    )
