"""The file ``w12.json`` of a converted model: which shards are finished, and what they must hash to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from lossguard.atomic_write import replace_file
from lossguard_mechanisms.weights.w12.failures import cannot_write, not_understood, unusable_target
from lossguard_mechanisms.weights.w12.layout import VERSION
from lossguard_mechanisms.weights.w12.model_folder import read_object

RECORD_NAME = "w12.json"
LOCK_NAME = ".w12.lock"
SHARD_SUFFIX = ".w12.safetensors"
"""Not a name that a loader takes for ordinary weights: one that knows no W12 finds nothing rather than guesses."""

_FORMAT = "lossguard-w12"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedShard:
    """One output file: what it was made from, its size and the hash of its header, which holds all others."""

    source_sha256: str
    header_sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionRecord:
    """State of a conversion; ``shards`` are by the name of the output file."""

    escape_limit: float
    shards: Mapping[str, FinishedShard]
    is_complete: bool = False

    def with_shard(self, name: str, shard: FinishedShard) -> Self:
        """The record with one more finished shard, and not complete until that is said again."""
        return replace(self, shards={**self.shards, name: shard}, is_complete=False)

    def write(self, folder: Path) -> None:
        """Put it on disk in one step. Raises StorageError LG1205."""
        data = {"format": _FORMAT, "version": VERSION, **asdict(self)}
        with writing(folder / RECORD_NAME):
            replace_file(folder / RECORD_NAME, (json.dumps(data, indent=2) + "\n").encode())


def read_record(folder: Path) -> ConversionRecord:
    """The record of a folder. Raises IntegrityError LG1203 (no such file, no JSON) or LG1209 (not understood)."""
    path = folder / RECORD_NAME
    data = read_object(path)
    if data.get("format") != _FORMAT or data.get("version") != VERSION:
        raise not_understood(path, f"format {data.get('format')!r}, version {data.get('version')!r}")
    try:
        return ConversionRecord(
            escape_limit=float(data["escape_limit"]),
            shards={name: FinishedShard(**entry) for name, entry in data["shards"].items()},
            is_complete=bool(data["is_complete"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise not_understood(path, f"it is damaged ({type(error).__name__}: {error})") from error


def read_complete_record(folder: Path) -> ConversionRecord:
    """As ``read_record``; a conversion that has not ended is not understood either."""
    record = read_record(folder)
    if not record.is_complete:
        raise not_understood(folder / RECORD_NAME, "the conversion has not ended: run it again")
    return record


def open_target(folder: Path, source: Path, escape_limit: float) -> ConversionRecord:
    """Make or take up the output folder. Raises UsageError LG1208, StorageError LG1205."""
    if folder.resolve() == source.resolve() or folder.resolve().is_relative_to(source.resolve()):
        raise unusable_target(folder, "it is the model's own folder, or inside it")
    if folder.exists() and not folder.is_dir():
        raise unusable_target(folder, "it is a file")
    if (folder / RECORD_NAME).exists():
        record = read_record(folder)
        if record.escape_limit != escape_limit:
            raise unusable_target(folder, f"it was begun with an escape limit of {record.escape_limit:g}")
        return record
    if folder.exists() and any(file.name != LOCK_NAME for file in folder.iterdir()):
        raise unusable_target(folder, f"it is not empty and has no {RECORD_NAME}")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    record = ConversionRecord(escape_limit=escape_limit, shards={})
    record.write(folder)  # before anything else, so that whatever is there after a crash is known as ours
    return record


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of writing into StorageError LG1205 that names ``path``."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error
