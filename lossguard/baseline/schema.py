"""The recorded baseline, schema 1: one value in memory, JSON facts and arrays on disk.

Kept: requests, stock's replies (ids, ends, usage, text, telemetry), forced scores of the calibration replies, the
frozen thresholds and stock's fingerprint. Not kept: arrival times (timing is measured in pairs, never against a
record) and reported log-probabilities (the thresholds that follow from them are frozen). Test replies are scored
beside each candidate, so their scores are not kept either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lossguard.baseline.ragged import pack, pack_telemetry, unpack, unpack_telemetry
from lossguard.checks.base import Thresholds
from lossguard.fingerprint import Fingerprint
from lossguard.records import FinishReason, ForcedScores, Request, ServedOutput, Usage, require_finite
from lossguard.scoring.columns import COLUMN_DTYPES, SAMPLED_DTYPES

SCHEMA_VERSION: Final = 1
Tensors = dict[str, NDArray[Any]]

_PLAIN: Final[dict[str, type]] = {
    "name": str,
    "claim": str,
    "created": str,
    "producer_version": str,
    "rules_sha256": str,
    "parameters": dict,
    "scorer": dict,
}
_REQUESTS: Final = ("calibration_requests", "test_requests")
_REPLIES: Final = {
    "calibration": "calibration_requests",
    "recomposed": "calibration_requests",
    "test": "test_requests",
}
_DERIVED: Final = frozenset({"prompts", "thresholds", "fingerprint"})
_SCORES: Final = {"calibration_scores": "calibration", "recomposed_scores": "recomposed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRecord:
    """A record as it lies on disk: JSON facts, and arrays by name."""

    facts: dict[str, Any]
    tensors: Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRecord:
    """What stock served and scored for one claim; replies and scores are in the order of their requests."""

    name: str
    claim: str
    created: str  # RFC 3339, UTC
    producer_version: str
    rules_sha256: str  # of the checks that froze the thresholds
    parameters: Mapping[str, Any]
    scorer: Mapping[str, Any]
    prompts_sha256: str
    prompt_reasons: tuple[str, ...]
    calibration_requests: tuple[Request, ...]
    test_requests: tuple[Request, ...]
    calibration: tuple[ServedOutput, ...]
    recomposed: tuple[ServedOutput, ...]
    test: tuple[ServedOutput, ...]
    calibration_scores: ForcedScores
    recomposed_scores: ForcedScores
    thresholds: Thresholds
    fingerprint: Fingerprint


def kept_part(output: ServedOutput) -> ServedOutput:
    """A reply without what a record leaves out."""
    return replace(output, sent_ns=0, arrival_ns=(), logprobs=None)


def to_raw(record: BaselineRecord) -> RawRecord:
    """The form on disk. Raises ValueError for replies or scores that do not answer the record's requests.

    Numbers must be finite; an option of the scorer that JSON does not have is a ValueError too.
    """
    facts: dict[str, Any] = {name: getattr(record, name) for name in _PLAIN}
    facts["prompts"] = {"sha256": record.prompts_sha256, "reasons": list(record.prompt_reasons)}
    facts["thresholds"] = record.thresholds.to_json()
    facts["fingerprint"] = record.fingerprint.to_json()
    tensors: Tensors = {}
    for name in _REQUESTS:
        facts[name], packed = _requests_to_raw(name, getattr(record, name))
        tensors |= packed
    for name, asked in _REPLIES.items():
        _require_same_ids(name, getattr(record, name), getattr(record, asked))
        facts[name], packed = _replies_to_raw(name, getattr(record, name))
        tensors |= packed
    for name, replies in _SCORES.items():
        tensors |= _scores_to_raw(name, getattr(record, name), getattr(record, replies))
    require_finite(facts, "record")
    return RawRecord(facts=facts, tensors=tensors)


def from_raw(raw: RawRecord) -> BaselineRecord:
    """Inverse of ``to_raw``. Raises KeyError, TypeError, ValueError or IntegrityError for another form."""
    facts, tensors = raw.facts, dict(raw.tensors)
    requests = {name: _requests_from_raw(name, facts[name], tensors) for name in _REQUESTS}
    replies = {name: _replies_from_raw(name, facts[name], tensors) for name in _REPLIES}
    for name, asked in _REPLIES.items():
        _require_same_ids(name, replies[name], requests[asked])
    scores = {name: _scores_from_raw(name, replies[of], tensors) for name, of in _SCORES.items()}
    values: dict[str, Any] = {**_plain_from_raw(facts), **requests, **replies, **scores}
    unknown = sorted(tensors) + sorted(facts.keys() - {*_PLAIN, *_REQUESTS, *_REPLIES, *_DERIVED})
    if unknown:
        raise ValueError(f"it holds {', '.join(unknown)}, which schema {SCHEMA_VERSION} does not have")
    return BaselineRecord(
        **values,
        prompts_sha256=facts["prompts"]["sha256"],
        prompt_reasons=tuple(facts["prompts"]["reasons"]),
        thresholds=Thresholds.from_json(facts["thresholds"]),
        fingerprint=Fingerprint.from_json(facts["fingerprint"]),
    )


def _plain_from_raw(facts: Mapping[str, Any]) -> dict[str, Any]:
    for name, kind in _PLAIN.items():
        if not isinstance(facts[name], kind):
            raise TypeError(f"{name} is a {type(facts[name]).__name__}")
    return {name: facts[name] for name in _PLAIN}


def _requests_to_raw(name: str, requests: Sequence[Request]) -> tuple[list[dict[str, Any]], Tensors]:
    entries = [request.to_json() for request in requests]
    return entries, pack(f"{name}.prompt_ids", [entry.pop("prompt_ids") for entry in entries], np.int32)


def _requests_from_raw(name: str, entries: Sequence[Mapping[str, Any]], tensors: Tensors) -> tuple[Request, ...]:
    rows = unpack(f"{name}.prompt_ids", tensors, np.int32)
    return tuple(Request.from_json({**entry, "prompt_ids": ids}) for entry, ids in zip(entries, rows, strict=True))


def _replies_to_raw(name: str, outputs: Sequence[ServedOutput]) -> tuple[dict[str, Any], Tensors]:
    columns = sorted({column for output in outputs for column in output.telemetry})
    entries = [
        {
            "request_id": output.request_id,
            "finish_reason": output.finish_reason.value,
            "stop_reason": output.stop_reason,
            "usage": None if output.usage is None else _usage_to_json(output.usage),
            "text": output.text,
        }
        for output in outputs
    ]
    tensors = pack(f"{name}.ids", [output.ids for output in outputs], np.int32)
    for number, column in enumerate(columns):
        rows = [output.telemetry.get(column) for output in outputs]
        tensors |= pack_telemetry(f"{name}.telemetry.{number}", rows)
    return {"replies": entries, "telemetry": columns}, tensors


def _replies_from_raw(name: str, facts: Mapping[str, Any], tensors: Tensors) -> tuple[ServedOutput, ...]:
    ids = unpack(f"{name}.ids", tensors, np.int32)
    columns = {
        column: unpack_telemetry(f"{name}.telemetry.{number}", tensors)
        for number, column in enumerate(facts["telemetry"])
    }
    outputs = []
    for index, (entry, row) in enumerate(zip(facts["replies"], ids, strict=True)):
        values = {column: rows[index] for column, rows in columns.items()}
        outputs.append(
            ServedOutput(
                request_id=entry["request_id"],
                ids=row,
                finish_reason=FinishReason(entry["finish_reason"]),
                stop_reason=entry["stop_reason"],
                usage=None if entry["usage"] is None else Usage(**entry["usage"]),
                text=entry["text"],
                telemetry={column: value for column, value in values.items() if value is not None},
            )
        )
    return tuple(outputs)


def _usage_to_json(usage: Usage) -> dict[str, int | None]:
    return {field.name: getattr(usage, field.name) for field in fields(usage)}


def _scores_to_raw(name: str, scores: ForcedScores, outputs: Sequence[ServedOutput]) -> Tensors:
    _require_scores_of(name, scores, outputs)
    columns = [*COLUMN_DTYPES, *(SAMPLED_DTYPES if scores.entropy is not None else ())]
    return {f"{name}.{column}": np.ascontiguousarray(getattr(scores, column)) for column in columns}


def _scores_from_raw(name: str, outputs: Sequence[ServedOutput], tensors: Tensors) -> ForcedScores:
    sampled = f"{name}.{next(iter(SAMPLED_DTYPES))}" in tensors
    dtypes = {**COLUMN_DTYPES, **(SAMPLED_DTYPES if sampled else {})}
    columns: dict[str, Any] = {column: tensors.pop(f"{name}.{column}") for column in dtypes}
    lengths = [len(output.ids) for output in outputs]
    for column, dtype in dtypes.items():
        if columns[column].dtype != np.dtype(dtype) or len(columns[column]) != sum(lengths):
            raise ValueError(f"{name}.{column} is {columns[column].dtype}{list(columns[column].shape)}")
    scores = ForcedScores(
        request_ids=tuple(output.request_id for output in outputs),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        **columns,
    )
    _require_scores_of(name, scores, outputs)
    return scores


def _require_scores_of(name: str, scores: ForcedScores, outputs: Sequence[ServedOutput]) -> None:
    served = [token for output in outputs for token in output.ids]
    if scores.request_ids != tuple(output.request_id for output in outputs) or scores.served_id.tolist() != served:
        raise ValueError(f"{name} are scores of other replies")
    if scores.top_ids.ndim != 2 or scores.top_ids.shape != scores.top_logits.shape:
        raise ValueError(f"{name} has top-k of shapes {scores.top_ids.shape} and {scores.top_logits.shape}")


def _require_same_ids(name: str, outputs: Sequence[ServedOutput], requests: Sequence[Request]) -> None:
    if [output.request_id for output in outputs] != [request.id for request in requests]:
        raise ValueError(f"the replies {name!r} do not answer the record's requests in their order")
