"""The boundary with engines: what they yield becomes a well-formed ServedOutput, or an EngineError."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from lossguard.errors import EngineError
from lossguard.records import FinishReason, ReportedLogprobs, ServedOutput

LARGEST_ID = 2**31 - 1
"""Scores hold ids as int32; this one stands for every id that cannot be one, and exists in no vocabulary."""
_T = TypeVar("_T")


def validated(output: Any) -> ServedOutput:
    """The same output with plain Python numbers: numpy and torch scalars, lists and strings are converted.

    Raises EngineError LG0618 for anything that cannot be meant: ids that are no integers, an unknown finish reason,
    telemetry that is no numbers.
    """
    if not isinstance(output, ServedOutput):
        raise _malformed("an output", f"is a {type(output).__name__}, not a ServedOutput")
    name = f"the reply to {output.request_id!r}"
    return replace(
        output,
        ids=_read(name, "ids", output.ids, lambda value: tuple(operator.index(item) for item in value)),
        finish_reason=_read(name, "finish_reason", output.finish_reason, FinishReason),
        arrival_ns=_read(name, "arrival_ns", output.arrival_ns, lambda value: tuple(int(item) for item in value)),
        logprobs=_read(name, "logprobs", output.logprobs, _logprobs),
        telemetry=_read(name, "telemetry", output.telemetry, _telemetry),
        text=None if output.text is None else _read(name, "text", output.text, _text),
    )


def scorable(output: ServedOutput) -> ServedOutput:
    """The same reply with ids that int32 cannot hold replaced by one that exists in no vocabulary."""
    if all(0 <= token <= LARGEST_ID for token in output.ids):
        return output
    return replace(output, ids=tuple(token if 0 <= token <= LARGEST_ID else LARGEST_ID for token in output.ids))


def _read(name: str, field: str, value: Any, convert: Callable[[Any], _T]) -> _T:
    try:
        return convert(value)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _malformed(name, f"has {field} = {str(value)[:80]!r}: {error}") from error


def _logprobs(value: ReportedLogprobs | None) -> ReportedLogprobs | None:
    """Missing values become NaN, which the run folder keeps as null."""
    if value is None:
        return None
    return ReportedLogprobs(
        served=_row(value.served),
        top_ids=tuple(tuple(operator.index(item) for item in row) for row in value.top_ids),
        top_logprobs=tuple(_row(row) for row in value.top_logprobs),
    )


def _row(values: Any) -> tuple[float, ...]:
    return tuple(math.nan if value is None else float(value) for value in values)


def _telemetry(value: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    columns = {str(key): tuple(float(item) for item in column) for key, column in value.items()}
    for key, column in columns.items():
        if not all(math.isfinite(item) for item in column):
            raise ValueError(f"{key} holds a value that is not finite")
    return columns


def _text(value: str) -> str:
    """Text is for people: characters that no encoding holds are made visible."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def _malformed(name: str, found: str) -> EngineError:
    return EngineError(
        f"{name} {found}",
        why="a reply that can be read in two ways cannot be judged",
        fix="let the engine yield ServedOutput values as lossguard/records.py defines them",
        code="LG0618",
    )
