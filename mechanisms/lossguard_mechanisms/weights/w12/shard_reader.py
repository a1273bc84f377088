"""Reading safetensors files: a model's own, and those that convert has written, with their checksums."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from lossguard_mechanisms.weights.w12.codec import decode
from lossguard_mechanisms.weights.w12.failures import checksum_mismatch, not_understood, unreadable
from lossguard_mechanisms.weights.w12.layout import PARTS
from lossguard_mechanisms.weights.w12.metadata import ShardMetadata, new_digest, parse, stored_names
from lossguard_mechanisms.weights.w12.shard_writer import digest_of
from lossguard_mechanisms.weights.w12.w12_tensor import W12Tensor


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A safetensors file, mapped into memory. Raises IntegrityError LG1203, also for reads inside the block."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise unreadable(path, str(error)) from error


@dataclass(frozen=True, slots=True)
class W12Shard:
    """An open file that convert has written; every tensor that it gives has passed its checksum."""

    path: Path
    metadata: ShardMetadata
    _file: Any

    def stored_shape(self, stored: str) -> tuple[str, int]:
        """Type and number of entries of a stored array, from the header alone."""
        part = self._file.get_slice(stored)
        return str(part.get_dtype()), math.prod(part.get_shape())

    def stored(self, name: str) -> W12Tensor | Tensor:
        """A tensor of the original by its name there, as stored.

        Raises IntegrityError LG1203 (not readable), LG1204 (checksum) or LG1209 (parts that do not fit together).
        """
        entry = self.metadata.tensors[name]
        labels = PARTS if entry.is_w12 else ("raw",)
        try:
            arrays = {
                label: self._file.get_tensor(stored)
                for label, stored in zip(labels, stored_names(name, entry), strict=True)
            }
        except SafetensorError as error:
            raise unreadable(self.path, str(error)) from error
        if digest_of(arrays) != entry.sha256:
            raise checksum_mismatch(self.path, name)
        if not entry.is_w12:
            raw: Tensor = arrays["raw"]
            return raw
        return W12Tensor(shape=entry.shape, **arrays).require_consistent(self.path)

    def dense(self, name: str) -> Tensor:
        """A tensor of the original, bit for bit. Raises as ``stored`` does."""
        stored = self.stored(name)
        return decode(stored) if isinstance(stored, W12Tensor) else stored


@contextmanager
def opened_w12(path: Path, header_sha256: str | None = None) -> Iterator[W12Shard]:
    """A file that convert has written; ``header_sha256`` is what its record says.

    Raises IntegrityError LG1203, LG1204 or LG1209.
    """
    if header_sha256 is not None and header_digest(path) != header_sha256:
        raise checksum_mismatch(path, "its header")
    with opened(path) as file:
        metadata = parse(path, file.metadata())
        expected = {stored for name, entry in metadata.tensors.items() for stored in stored_names(name, entry)}
        if expected != set(file.keys()):
            raise not_understood(path, "its arrays are not those that its metadata lists")
        yield W12Shard(path, metadata, file)


def header_digest(path: Path) -> str:
    """SHA-256 of a safetensors file's header with its length, hexadecimal. Raises IntegrityError LG1203."""
    digest = new_digest()
    try:
        with path.open("rb") as file:
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > path.stat().st_size:
                raise unreadable(path, "it ends within its header")
            digest.update(prefix)
            digest.update(file.read(length))
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from error
    return str(digest.hexdigest())
