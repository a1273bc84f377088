"""Writing a record so that a reader sees a whole file or none, whoever else writes at the same time."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from lossguard.baseline.problems import not_writable


def write_bytes_atomically(path: Path, data: bytes) -> Path:
    """Write to a temporary name of its own in the same folder, fsync, rename, and make the rename durable.

    Makes the folder. Raises StorageError LG0707; what stood at ``path`` before is then intact.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except OSError as error:
        raise not_writable(path, error) from error
    return path


def require_writable(path: Path) -> None:
    """Raise StorageError LG0707 if ``write_bytes_atomically`` could not write at ``path``; leaves nothing behind."""
    probe = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise not_writable(path, error) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
