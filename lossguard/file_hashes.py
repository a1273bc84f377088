"""SHA-256 of weight files, each read once: hashes are kept by path, size, modification time and inode."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from filelock import FileLock

from lossguard.atomic_write import replace_file
from lossguard.errors import IntegrityError, StorageError, UsageError
from lossguard.models import CACHE_VARIABLE, cache_folder, sha256_of_file

CACHE_NAME = "file-hashes.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """What tells a file apart from an earlier one under the same path, without reading it."""

    size_bytes: int
    modified_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """The state now. Raises FileNotFoundError."""
        status = path.stat()
        return cls(size_bytes=status.st_size, modified_ns=status.st_mtime_ns, inode=status.st_ino)


@dataclass(frozen=True, slots=True)
class HashCache:
    """Known hashes in one JSON file of ``folder``; several processes may use it at once."""

    folder: Path

    @classmethod
    def default(cls) -> Self:
        """In lossguard's cache folder (``lossguard.models.cache_folder``)."""
        return cls(cache_folder())

    def sha256(self, path: Path) -> str:
        """Hash of a file, hexadecimal; read only if it is not the file that was read before.

        Raises UsageError LG0108 (file not readable), IntegrityError LG0101 (cache damaged) or LG0103 (file changed
        meanwhile), StorageError LG0102 (cache not writable).
        """
        path = path.resolve()
        known = self._read().get(str(path))
        try:
            state = FileState.of(path)
            if known is not None and known == {**asdict(state), "sha256": known.get("sha256")}:
                return str(known["sha256"])
            digest = stable_sha256(path, state)
        except OSError as error:
            raise _unreadable(path, error) from error
        self._keep(str(path), {**asdict(state), "sha256": digest})
        return digest

    def _read(self) -> dict[str, dict[str, str | int]]:
        file = self.folder / CACHE_NAME
        if not file.exists():
            return {}
        try:
            known = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise _damaged(file, str(error)) from error
        if not isinstance(known, dict) or not all(isinstance(entry, dict) for entry in known.values()):
            raise _damaged(file, "it does not hold one object per file")
        return known

    def _keep(self, path: str, entry: Mapping[str, str | int]) -> None:
        file = self.folder / CACHE_NAME
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(file.with_suffix(".lock")):
                known = {name: old for name, old in self._read().items() if Path(name).exists()}
                replace_file(file, json.dumps({**known, path: entry}, indent=1).encode())
        except OSError as error:
            raise StorageError(
                f"the cache of file hashes in {self.folder} cannot be written: {error.strerror or error}",
                why="without it every run reads all weights again only to name them",
                fix=f"make that folder writable, or set {CACHE_VARIABLE} to one that is",
                code="LG0102",
            ) from error


def stable_sha256(path: Path, state: FileState) -> str:
    """Hash of a file that must still be in ``state`` after it was read, else IntegrityError LG0103."""
    digest = sha256_of_file(path)
    if FileState.of(path) != state:
        raise IntegrityError(
            f"{path} changed while it was read",
            why="the hash would name weights that are neither the old nor the new ones",
            fix="wait until the model folder is complete, then run again",
            code="LG0103",
        )
    return digest


def combined_sha256(parts: Iterable[str]) -> str:
    """One hash over several, independent of their order."""
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path} cannot be read: {error.strerror or error}",
        why="a verdict names the weights that it speaks about by their hash",
        fix="make the file readable; a link that leads nowhere means a download that is not complete",
        code="LG0108",
    )


def _damaged(file: Path, what: str) -> IntegrityError:
    return IntegrityError(
        f"{file} is damaged: {what}",
        why="a wrong hash would let runs on different weights pass as comparable",
        fix="delete that file: the weights are hashed again",
        code="LG0101",
    )
