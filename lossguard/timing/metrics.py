"""What users feel, from the client's own clock: time to first token, between tokens, and goodput at a fixed trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lossguard.errors import UsageError
from lossguard.timing.base import FloatArray

QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTrace:
    """One request on the client's clock (seconds on one monotonic scale)."""

    due: float  # when the arrival trace wanted it sent
    sent: float
    tokens: tuple[float, ...]  # arrival of each token; tokens that came in one piece share a time
    succeeded: bool = True

    @property
    def time_to_first_token(self) -> float:
        """From the due time: a client that falls behind its trace may not hide the wait."""
        return self.tokens[0] - self.due

    @property
    def latency(self) -> float:
        """Due time to last token."""
        return self.tokens[-1] - self.due

    @property
    def mean_inter_token(self) -> float:
        """Mean gap after the first token; 0 for a reply of one token."""
        return (self.tokens[-1] - self.tokens[0]) / max(len(self.tokens) - 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTarget:
    """What a good request meets; a None is not asked."""

    time_to_first_token: float | None = None
    mean_inter_token: float | None = None
    latency: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Mean and quantiles, in seconds, of what succeeded."""

    count: int
    mean: float
    quantiles: tuple[tuple[float, float], ...]  # (probability, seconds)
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Requests per second that succeeded and met their target, over the trace's own length."""

    requests_per_second: float
    tokens_per_second: float
    num_good: int
    num_requests: int
    num_failed: int
    seconds: float


def summarise(values: Sequence[float] | FloatArray) -> Summary | None:
    """Mean and quantiles of a column of seconds; None where there is nothing."""
    column = np.asarray(values, dtype=np.float64)
    if column.size == 0:
        return None
    levels = np.quantile(column, QUANTILES).tolist()
    return Summary(
        count=int(column.size),
        mean=float(column.mean()),
        quantiles=tuple(zip(QUANTILES, levels, strict=True)),
        largest=float(column.max()),
    )


def time_to_first_token(traces: Sequence[RequestTrace]) -> Summary | None:
    """Of requests that succeeded; failures are counted by ``goodput``."""
    return summarise([trace.time_to_first_token for trace in _served(traces)])


def inter_token(traces: Sequence[RequestTrace]) -> Summary | None:
    """All single gaps between tokens, so that one long stall shows."""
    gaps = [np.diff(trace.tokens) for trace in _served(traces)]
    return summarise(np.concatenate(gaps)) if gaps else None


def latency(traces: Sequence[RequestTrace]) -> Summary | None:
    """Due time to last token."""
    return summarise([trace.latency for trace in _served(traces)])


def goodput(traces: Sequence[RequestTrace], target: ServiceTarget, *, trace_seconds: float) -> Goodput:
    """Good requests over the longer of the trace and the time that serving it took.

    A failed request is never good. Dividing by the longer of both keeps a system from gaining by falling behind.

    Raises
    ------
    UsageError
        LG1056 for a trace without requests or length.
    """
    if not traces or not trace_seconds > 0:
        raise UsageError(
            f"a trace of {len(traces)} requests over {trace_seconds} seconds",
            why="goodput is a rate over a fixed trace of arrivals",
            fix="give the requests of one run and the length of the trace that they followed",
            code="LG1056",
        )
    served = _served(traces)
    good = [trace for trace in served if _meets(trace, target)]
    start = min(trace.due for trace in traces)
    last = max((trace.tokens[-1] for trace in served), default=start)
    seconds = max(trace_seconds, last - start)
    return Goodput(
        requests_per_second=len(good) / seconds,
        tokens_per_second=sum(len(trace.tokens) for trace in good) / seconds,
        num_good=len(good),
        num_requests=len(traces),
        num_failed=len(traces) - len(served),
        seconds=seconds,
    )


def _served(traces: Sequence[RequestTrace]) -> list[RequestTrace]:
    return [trace for trace in traces if trace.succeeded and trace.tokens]


def _meets(trace: RequestTrace, target: ServiceTarget) -> bool:
    asked = (
        (target.time_to_first_token, trace.time_to_first_token),
        (target.mean_inter_token, trace.mean_inter_token),
        (target.latency, trace.latency),
    )
    return all(limit is None or value <= limit for limit, value in asked)
