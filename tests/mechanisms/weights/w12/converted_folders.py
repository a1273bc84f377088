"""What tests of conversions share."""

from __future__ import annotations

import hashlib
from pathlib import Path

FIRST, SECOND = "model-00001-of-00002", "model-00002-of-00002"


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a folder, by name."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
