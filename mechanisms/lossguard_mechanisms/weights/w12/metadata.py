"""What a W12 file says about itself: one JSON text under the key ``w12`` of the safetensors metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lossguard_mechanisms.weights.w12.failures import not_understood
from lossguard_mechanisms.weights.w12.layout import PARTS, VERSION

KEY = "w12"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of the original: in W12 or raw, its shape and dtype there, why, and a hash of its stored bytes."""

    is_w12: bool
    dtype: str
    shape: tuple[int, ...]
    num_escapes: int
    reason: str
    sha256: str

    @property
    def num_weights(self) -> int:
        """Entries of the original tensor."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMetadata:
    """The file that a shard was made from, by name and hash, and its tensors in the order of that file."""

    source_name: str
    source_sha256: str
    tensors: Mapping[str, TensorEntry]

    def to_text(self) -> str:
        """As stored."""
        return json.dumps(
            {
                "version": VERSION,
                "source": {"name": self.source_name, "sha256": self.source_sha256},
                "tensors": {name: asdict(entry) for name, entry in self.tensors.items()},
            },
            separators=(",", ":"),
        )


def parse(path: Path, metadata: Mapping[str, str] | None) -> ShardMetadata:
    """Read the metadata of the file at ``path``. Raises IntegrityError LG1209."""
    text = (metadata or {}).get(KEY)
    if text is None:
        raise not_understood(path, f"its metadata has no {KEY!r}")
    try:
        data: dict[str, Any] = json.loads(text)
        version = data["version"]
        if version != VERSION:
            raise not_understood(path, f"its version is {version!r}, this reads {VERSION}")
        return ShardMetadata(
            source_name=str(data["source"]["name"]),
            source_sha256=str(data["source"]["sha256"]),
            tensors={name: _entry(entry) for name, entry in data["tensors"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise not_understood(path, f"its metadata is damaged ({type(error).__name__}: {error})") from error


def part_name(name: str, part: str) -> str:
    """The stored name of a part; buffers of ``W12Linear`` are called so too."""
    return f"{name}_w12_{part}"


def stored_names(name: str, entry: TensorEntry) -> tuple[str, ...]:
    """The names under which a tensor's bytes are stored."""
    return tuple(part_name(name, part) for part in PARTS) if entry.is_w12 else (name,)


def digest_start(label: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    """What is hashed before the bytes of an array, so that equal bytes of another type or shape differ."""
    return f"{label}:{dtype}:{'x'.join(map(str, shape))};".encode()


def new_digest() -> Any:
    """The hash that all checksums use."""
    return hashlib.sha256()


def _entry(data: Mapping[str, Any]) -> TensorEntry:
    fields = {**data, "shape": tuple(int(size) for size in data["shape"])}
    entry = TensorEntry(**fields)
    if not isinstance(entry.is_w12, bool) or not isinstance(entry.num_escapes, int):
        raise TypeError("a tensor's entry has fields of another type")
    return entry
