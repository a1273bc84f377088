"""Writing one safetensors file as its tensors come, with one of them in memory at a time.

The header stands before the data but is known only afterwards, so room is reserved for it and filled up with spaces,
which the format allows. Arrays follow each other without gaps; the caller writes those with larger items first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import torch
from torch import Tensor

from lossguard_mechanisms.weights.w12.layout import PARTS
from lossguard_mechanisms.weights.w12.metadata import KEY, digest_start, new_digest

DTYPE_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.complex64: "C64",
}
_ALIGNMENT = 64
_ROOM_PER_PART = 130
_ROOM_PER_TENSOR = 600


class ShardWriter:
    """A file under a temporary name that appears as ``path`` only when ``finish`` has put all of it on disk."""

    def __init__(self, path: Path, names: Iterable[str]) -> None:
        """``names`` are those of the original tensors; they bound the size of the header. Raises OSError."""
        self.path = path
        self._temporary = path.with_name(f".{path.name}.partial")
        self._entries: dict[str, dict[str, object]] = {}
        self._room = _header_room(names)
        self._offset = 0
        self._file: BinaryIO = self._temporary.open("wb")

    def __enter__(self) -> Self:
        self._file.seek(8 + self._room)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()  # may write what is still buffered, onto a disk that is full
        finally:
            self._temporary.unlink(missing_ok=True)

    def add(self, arrays: Mapping[str, Tensor]) -> None:
        """Write arrays under their names."""
        for name, array in arrays.items():
            data = bytes_of(array)
            self._file.write(data)
            end = self._offset + len(data)
            self._entries[name] = {
                "dtype": DTYPE_NAMES[array.dtype],
                "shape": list(array.shape),
                "data_offsets": [self._offset, end],
            }
            self._offset = end

    def finish(self, metadata: str) -> str:
        """Write the header and give the file its name. Returns the header's SHA-256. Raises OSError."""
        header = json.dumps({"__metadata__": {"format": "pt", KEY: metadata}, **self._entries}, separators=(",", ":"))
        data = header.encode()
        assert len(data) <= self._room, "the room for a header is reckoned from the names and must suffice"
        data = self._room.to_bytes(8, "little") + data.ljust(self._room)
        self._file.seek(0)
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._temporary.replace(self.path)
        digest = new_digest()
        digest.update(data)
        return str(digest.hexdigest())


def bytes_of(array: Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, as they lie in memory."""
    flat: Any = array.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def digest_of(arrays: Mapping[str, Tensor]) -> str:
    """One SHA-256 over arrays with their labels, types and shapes, hexadecimal."""
    digest = new_digest()
    for label, array in arrays.items():
        digest.update(digest_start(label, DTYPE_NAMES[array.dtype], tuple(array.shape)))
        digest.update(bytes_of(array))
    return str(digest.hexdigest())


def _header_room(names: Iterable[str]) -> int:
    """Bytes that the header cannot exceed, such that the data start at a multiple of 64."""
    room = 1024
    for name in names:
        quoted = len(json.dumps(json.dumps(name)))  # quoted twice in the metadata, once elsewhere
        room += len(PARTS) * (quoted + _ROOM_PER_PART) + quoted + _ROOM_PER_TENSOR
    return room + -(8 + room) % _ALIGNMENT
