"""Seals: hashes of a run folder's finished files, so that a verdict is never reached on files that were changed.

``seals.json`` maps a file (relative to the run folder) to the SHA-256 that it had when it was finished. A file
without a seal is one whose writer was stopped: it is made again. A file whose bytes differ from its seal is an
IntegrityError. This finds accidents and edits by hand; it is no protection against someone who rewrites the seals
too: keep the run folder out of the candidate's reach.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from lossguard.errors import IntegrityError
from lossguard.run_folder import read_json, write_atomically

FILE = "seals.json"


def seal(run: Path, files: Iterable[Path]) -> None:
    """Note the present hashes of finished files."""
    seals = _read(run) | {_name(run, file): _sha256(file) for file in files}
    write_atomically(run / FILE, json.dumps(dict(sorted(seals.items())), indent=2) + "\n")


def is_sealed(run: Path, file: Path) -> bool:
    """Whether a finished file is there unchanged; False if it is missing or was never finished.

    Raises IntegrityError LG0617 if its bytes differ from its seal.
    """
    expected = _read(run).get(_name(run, file))
    if expected is None or not file.is_file():
        return False
    if _sha256(file) != expected:
        raise IntegrityError(
            f"{file} has been changed since the run wrote it",
            why="a verdict on changed prompts, thresholds or scores would be about something else",
            fix=f"delete {file.name} and continue with --resume: it is made again; or start a new run",
            code="LG0617",
        )
    return True


def combined_seal(run: Path, files: Iterable[Path]) -> str:
    """One hash over the seals of several files, in order."""
    seals = _read(run)
    return hashlib.sha256("\n".join(seals.get(_name(run, file), "") for file in files).encode()).hexdigest()


def _read(run: Path) -> dict[str, str]:
    return read_json(run / FILE) if (run / FILE).is_file() else {}


def _name(run: Path, file: Path) -> str:
    return file.relative_to(run).as_posix()


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
