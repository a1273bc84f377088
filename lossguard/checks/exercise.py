"""Did what a system's ``exercise`` asks for really happen? By arrival times, telemetry and lengths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lossguard.checks.base import CheckInput
from lossguard.exercise_plan import Exercise, make_exercise
from lossguard.records import ServedOutput


def exercise_rows(given: CheckInput) -> list[dict[str, Any]]:
    """One row per part of the candidate's exercise, in the form of the vacuity check's expectations."""
    exercise = make_exercise(given.exercise)
    judges: dict[str, Callable[[CheckInput, Exercise], tuple[str, float | None, bool]]] = {
        "concurrency": _concurrency,
        "repeats": _repeats,
        "preemption": _preemption,
        "chunked_prefill": _chunked_prefill,
        "long": _long,
    }
    rows = []
    for name, judge in judges.items():
        wanted = getattr(exercise, name)
        if wanted:
            detail, seen, holds = judge(given, exercise)
            shown = f"exercise {name}: {detail}"
            rows.append(
                {"name": f"exercise.{name}", "expected": str(wanted), "seen": seen, "holds": holds, "detail": shown}
            )
    return rows


def growing_together(outputs: Sequence[ServedOutput]) -> int:
    """The largest number of replies that had their first token and not yet their last at one moment.

    A reply that arrived at one moment as a whole is growing at none: nothing tells how long it took.
    """
    spans = [
        (output.arrival_ns[0], output.arrival_ns[-1])
        for output in outputs
        if output.arrival_ns and output.arrival_ns[-1] > output.arrival_ns[0]
    ]
    if not spans:
        return 0
    times = np.array([*(start for start, _ in spans), *(end for _, end in spans)], dtype=np.int64)
    steps = np.concatenate([np.ones(len(spans), dtype=np.int64), -np.ones(len(spans), dtype=np.int64)])
    order = np.lexsort((steps, times))  # an end before a beginning at the same moment: they did not overlap
    return int(np.cumsum(steps[order]).max())


def _concurrency(given: CheckInput, exercise: Exercise) -> tuple[str, float | None, bool]:
    seen, wanted = growing_together(given.candidate.outputs), exercise.concurrency[-1]
    if seen == 0:
        return "every reply arrived as a whole, so nothing tells how many grew together (stream = true)", None, False
    text = f"up to {seen} replies grew together"
    return (text, seen, True) if seen >= wanted else (f"{text}, {wanted} were to", seen, False)


def _repeats(given: CheckInput, exercise: Exercise) -> tuple[str, float | None, bool]:
    """A prompt's first reply read less from the cache than each of its later ones: miss, hit, hit again."""
    cached: dict[str, dict[int, float]] = defaultdict(dict)
    for request, output in zip(given.requests, given.candidate.outputs, strict=True):
        if len(output.telemetry.get("cached", ())) == 1:
            cached[_prompt_of(request.id, request.repeat_id)][request.repeat_id] = output.telemetry["cached"][0]
    most = max((request.repeat_id + 1 for request in given.requests), default=0)
    if most < exercise.repeats:
        return f"every prompt was asked {most} times, {exercise.repeats} were wanted (--repeats)", float(most), False
    if not cached:
        return "no reply tells how much of its prompt was cached (vLLM: --enable-prompt-tokens-details)", None, False
    later = range(1, exercise.repeats)
    hits = [all(values.get(repeat, 0.0) > values[0] for repeat in later) for values in cached.values() if 0 in values]
    text = f"{sum(hits)} of {len(hits)} prompts missed the prefix cache first and hit it {len(later)} times after"
    return text, float(sum(hits)), any(hits)


def _prompt_of(request_id: str, repeat_id: int) -> str:
    return request_id.removesuffix(f"#{repeat_id}")


def _preemption(given: CheckInput, _exercise: Exercise) -> tuple[str, float | None, bool]:
    columns = [
        output.telemetry[name]
        for name in ("preempted", "server_preempted")
        for output in given.candidate.outputs
        if name in output.telemetry
    ]
    if not columns:
        return "nothing tells whether a reply was preempted", None, False
    seen = float(np.nansum([value for column in columns for value in column]))
    return (f"{seen:,.6g} preemptions", seen, True) if seen > 0 else ("no reply was preempted", seen, False)


def _chunked_prefill(given: CheckInput, exercise: Exercise) -> tuple[str, float | None, bool]:
    """No server counts chunks: a prompt with more tokens to read than a chunk holds was read in several."""
    seen = 0
    for request, output in zip(given.requests, given.candidate.outputs, strict=True):
        cached = output.telemetry.get("cached", (0.0,))
        seen += len(request.prompt_ids) - max(cached, default=0.0) > exercise.chunked_prefill
    text = f"{seen} prompts had more than {exercise.chunked_prefill:,} tokens to read"
    return text, float(seen), seen > 0


def _long(given: CheckInput, exercise: Exercise) -> tuple[str, float | None, bool]:
    longest = max((len(output.ids) for output in given.candidate.outputs), default=0)
    text = f"the longest reply has {longest:,} tokens"
    return (text, longest, True) if longest >= exercise.long else (f"{text}, not {exercise.long:,}", longest, False)
