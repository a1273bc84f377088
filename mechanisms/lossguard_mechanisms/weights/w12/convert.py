"""Converting a model folder: shard by shard, one tensor in memory at a time, and again from where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from lossguard.atomic_write import replace_file
from lossguard.file_hashes import FileState
from lossguard.listener import Listener, SilentListener
from lossguard.models import sha256_of_file
from lossguard_mechanisms.weights.w12.conversion_record import (
    LOCK_NAME,
    SHARD_SUFFIX,
    ConversionRecord,
    FinishedShard,
    open_target,
    writing,
)
from lossguard_mechanisms.weights.w12.failures import other_source, unusable_source, unusable_target
from lossguard_mechanisms.weights.w12.layout import PARTS, VERSION
from lossguard_mechanisms.weights.w12.metadata import ShardMetadata, TensorEntry, part_name
from lossguard_mechanisms.weights.w12.model_folder import CONFIG_NAME, ModelFolder, open_model, require_bf16_matrix
from lossguard_mechanisms.weights.w12.policy import ESCAPE_LIMIT, decide
from lossguard_mechanisms.weights.w12.shard_reader import header_digest, opened
from lossguard_mechanisms.weights.w12.shard_writer import DTYPE_NAMES, ShardWriter, digest_of

_PLANES = ("hi", "lo")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertResult:
    """How many shards were written now and how many were there already, and bytes before and after."""

    num_written: int
    num_kept: int
    source_bytes: int
    target_bytes: int


def convert(
    source: Path, target: Path, *, escape_limit: float = ESCAPE_LIMIT, listener: Listener | None = None
) -> ConvertResult:
    """Write ``source`` as a W12 model into ``target``; run again after an interruption, it goes on.

    Raises UsageError LG1206 to LG1208 and LG1211 before or between shards, IntegrityError LG1203, StorageError LG1205.
    """
    told = listener or SilentListener()
    folder = open_model(source)
    require_bf16_matrix(folder)
    record = open_target(target, source, escape_limit)
    num_kept = 0
    with _locked(target), told.stage("convert", folder.num_bytes, "bytes") as advance:
        for shard in folder.shards:
            state, digest = FileState.of(shard), sha256_of_file(shard)
            name = shard.name.removesuffix(".safetensors") + SHARD_SUFFIX
            if _is_finished(record, target / name, digest):
                num_kept += 1
                advance(state.size_bytes)
                told.message(f"{name}: kept")
                continue
            finished = _convert_shard(shard, target / name, (digest, escape_limit), advance)
            if FileState.of(shard) != state:
                (target / name).unlink()
                raise unusable_source(source, f"{shard.name} changed while it was read")
            record = record.with_shard(name, finished)
            record.write(target)
        _copy_side_files(folder, target)
        ConversionRecord(escape_limit=escape_limit, shards=record.shards, is_complete=True).write(target)
    target_bytes = sum(shard.size_bytes for shard in record.shards.values())
    num_written = len(folder.shards) - num_kept
    return ConvertResult(
        num_written=num_written, num_kept=num_kept, source_bytes=folder.num_bytes, target_bytes=target_bytes
    )


def _is_finished(record: ConversionRecord, path: Path, source_sha256: str) -> bool:
    """Whether a shard is there as it was recorded. Raises UsageError LG1211 if it was made from another file."""
    finished = record.shards.get(path.name)
    if finished is None:
        return False
    if finished.source_sha256 != source_sha256:
        raise other_source(path.parent, path.name.removesuffix(SHARD_SUFFIX) + ".safetensors")
    if not path.is_file() or path.stat().st_size != finished.size_bytes:
        return False
    return header_digest(path) == finished.header_sha256


def _convert_shard(
    source: Path, target: Path, given: tuple[str, float], advance: Callable[[int], None]
) -> FinishedShard:
    source_sha256, escape_limit = given
    entries: dict[str, TensorEntry] = {}
    later: dict[str, Tensor] = {}
    num_left = source.stat().st_size
    with opened(source) as file, writing(target):
        names = list(file.keys())
        with ShardWriter(target, names) as writer:
            for name in names:
                weight = file.get_tensor(name)
                decision = decide(weight, escape_limit)
                parts = {"raw": weight} if decision.coded is None else decision.coded.parts()
                entries[name] = _entry(weight, parts, decision.reason)
                if decision.coded is not None:
                    writer.add({part_name(name, part): parts[part] for part in _PLANES})
                later |= _after_planes(name, parts)
                advance(weight.nbytes)
                num_left -= weight.nbytes
            for stored in sorted(later, key=lambda key: (-later[key].element_size(), key)):
                writer.add({stored: later[stored]})
            metadata = ShardMetadata(source_name=source.name, source_sha256=source_sha256, tensors=entries)
            header_sha256 = writer.finish(metadata.to_text())
    advance(num_left)  # the source's header
    return FinishedShard(source_sha256=source_sha256, header_sha256=header_sha256, size_bytes=target.stat().st_size)


def _entry(weight: Tensor, parts: Mapping[str, Tensor], reason: str) -> TensorEntry:
    is_w12 = "raw" not in parts
    return TensorEntry(
        is_w12=is_w12,
        dtype=DTYPE_NAMES[weight.dtype],
        shape=tuple(weight.shape),
        num_escapes=parts["escape_bits"].numel() if is_w12 else 0,
        reason=reason,
        sha256=digest_of(parts),
    )


def _after_planes(name: str, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is written after all planes, so that each array starts at a multiple of its item's size."""
    return {name if part == "raw" else part_name(name, part): parts[part] for part in parts if part not in _PLANES}


def _copy_side_files(folder: ModelFolder, target: Path) -> None:
    for file in folder.side_files:
        with writing(target / file.name):
            if file.name == CONFIG_NAME:
                replace_file(target / file.name, _config_text(folder.config).encode())
            else:
                replace_file(target / file.name, file.read_bytes())


def _config_text(config: Mapping[str, Any]) -> str:
    marked = {**config, "quantization_config": {"quant_method": "w12", "version": VERSION}}
    return json.dumps(marked, indent=2, ensure_ascii=False) + "\n"


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Only one process writes into a folder. Raises UsageError LG1208."""
    lock = FileLock(target / LOCK_NAME)
    try:
        with lock.acquire(timeout=0):
            yield
    except Timeout as error:
        raise unusable_target(target, "another conversion is writing there") from error
    (target / LOCK_NAME).unlink(missing_ok=True)


assert set(_PLANES) < set(PARTS), "planes are parts"
