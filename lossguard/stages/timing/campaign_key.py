"""What a folder of runs was measured for: written before the first run, and required of whoever resumes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lossguard.errors import UsageError
from lossguard.run_folder import RunFolder

FILE = "key.json"


def require_same_key(folder: Path, key: Mapping[str, Any], what: str) -> None:
    """Write the key of a new folder, or require that of an old one. Raises UsageError LG1012.

    ``key`` is of JSON values. Runs without a key are refused: nobody knows what they measured.
    """
    place = RunFolder(folder)
    if not (folder / FILE).is_file():
        if (folder / "runs").is_dir() or any(folder.glob("*/runs")):
            raise other_key(folder, f"{what}, without a note of what it measured")
        folder.mkdir(parents=True, exist_ok=True)
        place.write_json(FILE, dict(key))
        return
    before = place.read_json(FILE)
    changed = [name for name in sorted({*before, *key}) if before.get(name) != key.get(name)]
    if changed:
        raise other_key(folder, f"{what} with another {', another '.join(changed)}")


def other_key(folder: Path, what: str) -> UsageError:
    """UsageError LG1012."""
    return UsageError(
        f"the campaign in {folder} was of {what}",
        why="runs of two different systems, machines or plans would be judged as one",
        fix="start a new run; the ledger knows which pairs belong to which candidate",
        code="LG1012",
    )
