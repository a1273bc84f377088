"""Forced scores as columns: concatenate, select, save and load.

On disk a ``ForcedScores`` is one safetensors file: a tensor per column, request ids as UTF-8 bytes of a JSON list, and
the schema version in the metadata. The file is written under a temporary name, fsynced and renamed, so that a reader
sees a whole file or none.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from lossguard.atomic_write import replace_file
from lossguard.errors import IntegrityError, StorageError, UsageError
from lossguard.records import ForcedScores

SCHEMA_VERSION: Final = "1"
_FORMAT: Final = "lossguard.forced_scores"
_IDS: Final = "request_ids_json"

COLUMN_DTYPES: Final[dict[str, str]] = {
    "served_id": "int32",
    "gap": "float32",
    "best_logit": "float32",
    "rank": "int32",
    "best_id": "int32",
    "logprob": "float32",
    "top_ids": "int32",
    "top_logits": "float32",
    "finite": "bool",
}
"""Columns of every ForcedScores, one row per token, with their dtypes."""

SAMPLED_DTYPES: Final[dict[str, str]] = {
    "entropy": "float32",
    "surprisal_variance": "float32",
    "pit_low": "float32",
    "pit_high": "float32",
    "in_support": "bool",
    "sampled_logprob": "float32",
    "support_gap": "float32",
}
"""Columns that exist together, where at least one request was sampled."""

REPLAYED_DTYPES: Final[dict[str, str]] = {"plain_gap": "float32", "plain_best_id": "int32", "replayed": "bool"}
"""Columns that exist together, where at least one request's parameters change which token is best."""

NOT_SAMPLED: Final[dict[str, float]] = {
    "entropy": 0.0,
    "surprisal_variance": 0.0,
    "pit_low": 0.0,
    "pit_high": 1.0,
    "in_support": 1.0,
    "sampled_logprob": 0.0,
    "support_gap": 0.0,
}
"""What the sampled columns hold for tokens of greedy requests: no information."""

NOT_FINITE: Final[dict[str, float]] = {
    "gap": 0.0,
    "best_logit": 0.0,
    "rank": -1,
    "best_id": -1,
    "logprob": 0.0,
    "top_ids": -1,
    "top_logits": 0.0,
    **NOT_SAMPLED,
    "plain_gap": 0.0,
    "plain_best_id": -1,
    "replayed": 0.0,
}
"""What the other columns hold where ``finite`` is False: never NaN, and no rank or id that exists."""


def save_scores(path: str | Path, scores: ForcedScores) -> None:
    """Write scores to ``path`` atomically. Raises StorageError if the place cannot be written."""
    tensors = _columns(scores)
    tensors["offsets"] = scores.offsets
    tensors[_IDS] = np.frombuffer(json.dumps(scores.request_ids).encode(), dtype=np.uint8)
    contiguous = {name: np.ascontiguousarray(column) for name, column in tensors.items()}
    data = save(contiguous, metadata={"format": _FORMAT, "schema_version": SCHEMA_VERSION})
    try:
        replace_file(Path(path), data)
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error}",
            why="scores that are not on disk are lost when the run stops",
            fix="free space or choose a run folder that can be written, then resume the run",
            code="LG0511",
        ) from error


def load_scores(path: str | Path) -> ForcedScores:
    """Read what ``save_scores`` wrote. Raises IntegrityError for a missing, damaged or foreign file."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            _require(metadata.get("format") == _FORMAT, path, f"its format is {metadata.get('format')!r}")
            version = metadata.get("schema_version")
            _require(version == SCHEMA_VERSION, path, f"its schema version is {version!r}, known is {SCHEMA_VERSION!r}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, struct.error) as error:
        raise _damaged(path, str(error)) from error
    return _from_tensors(path, tensors)


def concat_scores(scores: Sequence[ForcedScores]) -> ForcedScores:
    """Scores of all requests, in the given order.

    If only some have the sampled columns, the others get the values of ``NOT_SAMPLED``; if only some have those of
    replayed parameters, the others get their ordinary ones. Raises UsageError for an empty list, differing top-k, or a
    request id that occurs twice.
    """
    if not scores:
        raise _usage("nothing to concatenate", "an empty list has no top-k", "pass at least one ForcedScores")
    if len({item.top_ids.shape[1] for item in scores}) != 1:
        raise _usage("the scores have differing top-k", "rows would have differing widths", "score with one top_k")
    request_ids = tuple(request_id for item in scores for request_id in item.request_ids)
    _require_unique(request_ids)
    lengths = np.concatenate([np.diff(item.offsets) for item in scores])
    sampled = any(item.entropy is not None for item in scores)
    replayed = any(item.replayed is not None for item in scores)
    widened = [_with_sampled_columns(item) if sampled else item for item in scores]
    parts = [_columns(_with_replayed_columns(item) if replayed else item) for item in widened]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return ForcedScores(request_ids=request_ids, offsets=offsets_of(lengths), **columns)


def select(scores: ForcedScores, request_ids: Sequence[str]) -> ForcedScores:
    """The scores of these requests, in this order. Raises UsageError for an id that is absent or given twice."""
    _require_unique(request_ids)
    place = {request_id: index for index, request_id in enumerate(scores.request_ids)}
    absent = [request_id for request_id in request_ids if request_id not in place]
    if absent:
        raise _usage(f"no scores for request {absent[0]!r}", "nothing can be said about it", "score it first")
    spans = [(scores.offsets[place[name]], scores.offsets[place[name] + 1]) for name in request_ids]
    rows = np.concatenate([np.arange(start, stop) for start, stop in spans] or [np.zeros(0, dtype=np.int64)])
    lengths = np.array([stop - start for start, stop in spans], dtype=np.int64)
    columns = {name: column[rows] for name, column in _columns(scores).items()}
    return ForcedScores(request_ids=tuple(request_ids), offsets=offsets_of(lengths), **columns)


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """``[0, n0, n0 + n1, ...]`` for the numbers of tokens per request."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])


def _columns(scores: ForcedScores) -> dict[str, NDArray[Any]]:
    names = [*COLUMN_DTYPES, *(SAMPLED_DTYPES if scores.entropy is not None else ())]
    names += REPLAYED_DTYPES if scores.replayed is not None else ()
    return {name: getattr(scores, name) for name in names}


def _with_sampled_columns(scores: ForcedScores) -> ForcedScores:
    if scores.entropy is not None:
        return scores
    filled: dict[str, Any] = {
        name: np.full(scores.num_tokens, NOT_SAMPLED[name], dtype=dtype) for name, dtype in SAMPLED_DTYPES.items()
    }
    return dataclasses.replace(scores, **filled)


def _with_replayed_columns(scores: ForcedScores) -> ForcedScores:
    """Requests without such parameters: what would be best without them is what is best."""
    if scores.replayed is not None:
        return scores
    everywhere = np.ones(scores.num_tokens, dtype=np.bool_)
    return dataclasses.replace(scores, plain_gap=scores.gap, plain_best_id=scores.best_id, replayed=everywhere)


def _from_tensors(path: str | Path, tensors: dict[str, NDArray[Any]]) -> ForcedScores:
    sampled = any(name in tensors for name in SAMPLED_DTYPES)
    dtypes = {"offsets": "int64", _IDS: "uint8", **COLUMN_DTYPES, **(SAMPLED_DTYPES if sampled else {})}
    dtypes |= REPLAYED_DTYPES if any(name in tensors for name in REPLAYED_DTYPES) else {}
    _require(set(tensors) == set(dtypes), path, f"its columns are {sorted(tensors)}, expected {sorted(dtypes)}")
    for name, dtype in dtypes.items():
        _require(tensors[name].dtype == np.dtype(dtype), path, f"{name} is {tensors[name].dtype}, expected {dtype}")
    request_ids = _request_ids(path, tensors.pop(_IDS))
    offsets = tensors.pop("offsets")
    _require_offsets(path, offsets, len(request_ids))
    for name, column in tensors.items():
        shape = (int(offsets[-1]), *column.shape[1:2]) if name in ("top_ids", "top_logits") else (int(offsets[-1]),)
        _require(column.shape == shape, path, f"{name} has shape {column.shape}, expected {shape}")
    top = tensors["top_ids"].shape
    _require(len(top) == 2 and top[1] >= 2 and tensors["top_logits"].shape == top, path, f"top-k has shape {top}")
    return ForcedScores(request_ids=request_ids, offsets=offsets, **tensors)


def _request_ids(path: str | Path, raw: NDArray[np.uint8]) -> tuple[str, ...]:
    try:
        value = json.loads(raw.tobytes().decode())
    except ValueError as error:
        raise _damaged(path, "its request ids are no JSON") from error
    _require(isinstance(value, list) and all(isinstance(item, str) for item in value), path, "its request ids are odd")
    return tuple(value)


def _require_offsets(path: str | Path, offsets: NDArray[np.int64], num_requests: int) -> None:
    _require(offsets.shape == (num_requests + 1,), path, f"{offsets.shape} offsets for {num_requests} requests")
    _require(int(offsets[0]) == 0 and bool((np.diff(offsets) >= 0).all()), path, "its offsets do not ascend from 0")


def _require(condition: bool, path: str | Path, found: str) -> None:  # noqa: FBT001
    if not condition:
        raise _damaged(path, found)


def _damaged(path: str | Path, found: str) -> IntegrityError:
    return IntegrityError(
        f"{path} holds no valid forced scores: {found}",
        why="a verdict from damaged scores would mean nothing",
        fix="delete the file and resume the run: the outputs are scored again",
        code="LG0510",
    )


def _require_unique(request_ids: Sequence[str]) -> None:
    if len(set(request_ids)) != len(request_ids):
        raise _usage("a request id occurs twice", "its tokens would count twice", "give every request its own id")


def _usage(found: str, why: str, fix: str) -> UsageError:
    return UsageError(found, why=why, fix=fix, code="LG0512")
