"""Where drafts were rejected, from telemetry."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lossguard.checks.base import Arm, FloatArray
from lossguard.records import Request, ServedOutput


def tokens_since_rejection(arm: Arm, requests: Sequence[Request]) -> FloatArray | None:
    """[T] tokens since the last rejected draft of the reply, 0 for the first after it; inf before any.

    None where no reply says it: that takes the column ``after_rejection``, or ``drafts`` and ``accepted`` by token.
    """
    flags = [_after_rejection(output) for output in arm.outputs[: len(requests)]]
    if all(row is None for row in flags):
        return None
    rows = [_since(row, len(output.ids)) for row, output in zip(flags, arm.outputs, strict=False)]
    return np.concatenate(rows)


def _after_rejection(output: ServedOutput) -> list[bool] | None:
    """Per token, whether it begins the step after one whose drafts were not all accepted."""
    number, telemetry = len(output.ids), output.telemetry
    flags, blocks = telemetry.get("after_rejection", ()), telemetry.get("block_position", ())
    if number and len(flags) == number:
        starts = [at == 0 for at in blocks] if len(blocks) == number else _run_starts(flags)
        return [flag > 0 and start for flag, start in zip(flags, starts, strict=True)]
    drafts, accepted = telemetry.get("drafts", ()), telemetry.get("accepted", ())
    if number > 1 and len(drafts) == len(accepted) == number:
        return _from_counts(drafts, accepted)
    return None


def _run_starts(flags: Sequence[float]) -> list[bool]:
    return [flag > 0 and (at == 0 or not flags[at - 1] > 0) for at, flag in enumerate(flags)]


def _from_counts(drafts: Sequence[float], accepted: Sequence[float]) -> list[bool]:
    """A step that accepts a drafts serves a + 1 tokens, each of which carries the step's counts."""
    flags, at, rejected = [False] * len(drafts), 0, False
    while at < len(drafts):
        flags[at] = rejected
        rejected = accepted[at] < drafts[at]
        at += max(int(accepted[at]), 0) + 1
    return flags


def _since(flags: list[bool] | None, number: int) -> FloatArray:
    marks = np.array(flags if flags is not None else [False] * number, dtype=np.bool_)
    index = np.arange(number, dtype=np.float64)
    last = np.maximum.accumulate(np.where(marks, index, -np.inf)) if number else index
    return index - last
