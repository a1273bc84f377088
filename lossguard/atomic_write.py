"""Writing a file so that a reader sees the old one or the new one, whoever else writes at the same time.

The one place that does so. Errors are plain OSErrors: who writes knows what they mean for the user.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def replace_file(path: Path, data: bytes) -> Path:
    """Write to a temporary name of its own in the same folder, fsync, rename, and make the rename durable.

    Raises OSError; what stood at ``path`` before is then intact, and nothing else is left.
    """
    temporary = _temporary(path)
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)
    return path


def require_replaceable(path: Path) -> None:
    """Raise OSError if ``replace_file`` could not write at ``path``; leaves nothing behind."""
    probe = _temporary(path)
    probe.touch(exist_ok=False)
    probe.unlink()


def _temporary(path: Path) -> Path:
    """Hidden, beside the file (a rename stays within a file system), and nobody else's."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
