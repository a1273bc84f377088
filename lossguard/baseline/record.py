"""Writing and reading one record file.

The file is safetensors: arrays by name, all other facts as JSON in a uint8 array. The header states the schema
version and a hash over everything else, so that a byte changed anywhere is found on reading.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from lossguard.baseline.atomic import write_bytes_atomically
from lossguard.baseline.migrations import is_readable, migrate
from lossguard.baseline.parameters import claim_parameters, parameter_differences, plain_parameters
from lossguard.baseline.problems import damaged, missing, other_parameters, unknown_schema
from lossguard.baseline.schema import SCHEMA_VERSION, BaselineRecord, RawRecord, from_raw, to_raw
from lossguard.errors import IntegrityError

__all__ = [
    "BaselineRecord",
    "RecordFile",
    "claim_parameters",
    "load_record",
    "parse_record",
    "require_parameters",
    "write_record",
]

_HEADER: Final = "lossguard_baseline"
_FACTS: Final = "facts_json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFile:
    """A record with the hash that its file states (and that has been verified)."""

    record: BaselineRecord
    sha256: str


def write_record(path: Path, record: BaselineRecord) -> Path:
    """Write a record to ``path`` atomically. Raises StorageError LG0707."""
    return write_bytes_atomically(path, encode(to_raw(record), SCHEMA_VERSION))


def load_record(path: Path) -> BaselineRecord:
    """Read and validate a record, of this or an older schema.

    Raises BaselineError: LG0701 (no file), LG0702 (damaged), LG0703 (schema of another lossguard).
    """
    return parse_record(read_bytes(path), path).record


def read_bytes(path: Path) -> bytes:
    """The file's bytes. Raises BaselineError LG0701 or LG0702."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise missing(path) from error
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from error


def parse_record(data: bytes, path: Path) -> RecordFile:
    """As ``load_record``, from bytes; ``path`` is for messages."""
    header = _header(data, path)
    version, stated = header.get("schema_version"), header.get("sha256")
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise damaged(path, f"its schema version is {version!r}")
    if not is_readable(version):  # before the hash: the future may hash otherwise
        raise unknown_schema(path, str(version), SCHEMA_VERSION)
    tensors = _tensors(data, path)
    if _digest(tensors, version) != stated:
        raise damaged(path, "its content does not have the hash that its header states")
    try:
        facts = json.loads(tensors.pop(_FACTS).tobytes())
        record = from_raw(migrate(RawRecord(facts=facts, tensors=tensors), version))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IntegrityError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error
    return RecordFile(record=record, sha256=str(stated))


def require_parameters(record: BaselineRecord, parameters: Mapping[str, Any], path: Path) -> None:
    """Raise BaselineError LG0704 with the differences if the record was made with other parameters."""
    differences = parameter_differences(record.parameters, plain_parameters(parameters))
    if differences:
        raise other_parameters(path, differences)


def encode(raw: RawRecord, version: int) -> bytes:
    """The bytes of a record file of a schema version; equal records give equal bytes."""
    text = json.dumps(raw.facts, allow_nan=False, ensure_ascii=False, sort_keys=True)
    tensors = {**raw.tensors, _FACTS: np.frombuffer(text.encode(), dtype=np.uint8)}
    header = {"schema_version": version, "sha256": _digest(tensors, version)}
    return save(tensors, metadata={_HEADER: json.dumps(header, sort_keys=True)})


def _header(data: bytes, path: Path) -> dict[str, Any]:
    """What the file says about itself, read without the arrays: a future version may have other kinds of arrays."""
    try:
        (length,) = struct.unpack_from("<Q", data)
        if length > len(data) - 8:
            raise ValueError("it ends within its header")
        header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_HEADER])
    except (struct.error, KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"it is no record of lossguard, or was cut short ({error})") from error
    if not isinstance(header, dict):
        raise damaged(path, "its header is no object")
    return header


def _tensors(data: bytes, path: Path) -> dict[str, NDArray[Any]]:
    try:
        return load(data)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise damaged(path, f"it was cut short or changed ({error})") from error


def _digest(tensors: Mapping[str, NDArray[Any]], version: int) -> str:
    digest = hashlib.sha256(f"{_HEADER} {version}\n".encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name} {array.dtype.str} {list(array.shape)}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
