"""Writing a record, or seeing beforehand that it can be written; folders are made, errors are the store's."""

from __future__ import annotations

from pathlib import Path

from lossguard.atomic_write import replace_file, require_replaceable
from lossguard.baseline.problems import not_writable


def write_bytes_atomically(path: Path, data: bytes) -> Path:
    """Replace the file as a whole. Raises StorageError LG0707; what stood at ``path`` before is then intact."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return replace_file(path, data)
    except OSError as error:
        raise not_writable(path, error) from error


def require_writable(path: Path) -> None:
    """Raise StorageError LG0707 if ``write_bytes_atomically`` could not write at ``path``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        require_replaceable(path)
    except OSError as error:
        raise not_writable(path, error) from error
