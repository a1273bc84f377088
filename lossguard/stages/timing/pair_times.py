"""From run records to arrays: what the statistics see of a campaign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lossguard.stages.timing.design import NUM_RUNS
from lossguard.stages.timing.run_log import Reply, RunRecord
from lossguard.timing.base import Metric, PairTimes

NUM_ARMS = 2
CLOCK_SLACK_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPair:
    """One complete swap pair. Axes: run, arm (stock, candidate), request."""

    pair: int
    seconds: NDArray[np.float64]  # [2, 2, N]
    num_tokens: NDArray[np.int64]  # [2, 2, N]
    device: NDArray[np.int64]  # [2, 2]
    num_diverging: int  # replies whose ids differ between the arms of a run
    origin: str  # the run folder that it was measured in

    def to_json(self) -> dict[str, Any]:
        """A JSON object; ``from_json`` is the inverse."""
        return {
            "pair": self.pair,
            "seconds": self.seconds.tolist(),
            "num_tokens": self.num_tokens.tolist(),
            "device": self.device.tolist(),
            "num_diverging": self.num_diverging,
            "origin": self.origin,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MeasuredPair:
        """Inverse of ``to_json``. Raises KeyError, TypeError or ValueError."""
        return cls(
            pair=int(data["pair"]),
            seconds=np.asarray(data["seconds"], dtype=np.float64),
            num_tokens=np.asarray(data["num_tokens"], dtype=np.int64),
            device=np.asarray(data["device"], dtype=np.int64),
            num_diverging=int(data["num_diverging"]),
            origin=str(data["origin"]),
        )


def measured_pair(
    records: Sequence[RunRecord], device_names: Sequence[str], *, metric: str, origin: str
) -> tuple[MeasuredPair | None, list[str]]:
    """The arrays of a pair's two runs, or None with the reasons why its times are not to be used."""
    problems = [
        f"run {record.head['pair']}.{record.head['run']}: {text}" for record in records for text in record.problems
    ]
    by_arm = [[record.arm(arm) for arm in range(NUM_ARMS)] for record in records]
    problems += [text for run in by_arm for replies in run for text in _metric_problems(replies, metric)][:1]
    if problems:
        return None, problems
    replies = [reply for run in by_arm for arm in run for reply in arm]
    shape = (NUM_RUNS, NUM_ARMS, len(by_arm[0][0]))
    devices = [
        [device_names.index(record.head["devices"][arm]) for arm in ("stock", "candidate")] for record in records
    ]
    pair = MeasuredPair(
        pair=int(records[0].head["pair"]),
        seconds=np.array([metric_seconds(reply, metric) for reply in replies]).reshape(shape),
        num_tokens=np.array([reply.num_tokens for reply in replies], dtype=np.int64).reshape(shape),
        device=np.array(devices, dtype=np.int64),
        num_diverging=sum(_num_diverging(run) for run in by_arm),
        origin=origin,
    )
    return pair, []


def metric_seconds(reply: Reply, metric: str) -> float:
    """Seconds of one reply by the metric: ``latency``, ``ttft`` or ``inter_token``."""
    if metric == "latency":
        return reply.seconds
    assert reply.first_ns is not None, "replies without arrival times are refused before"
    assert reply.last_ns is not None, "replies without arrival times are refused before"
    if metric == "ttft":
        return (reply.first_ns - (reply.sent_ns if reply.due_ns is None else reply.due_ns)) / 1e9
    return (reply.last_ns - reply.first_ns) / 1e9 / (reply.num_tokens - 1)


def to_pair_times(
    pairs: Sequence[MeasuredPair], strata: Sequence[str], num_devices: int, *, metric: Metric
) -> PairTimes:
    """All pairs as one value. ``metric``: what their seconds hold."""
    return PairTimes(
        seconds=np.stack([pair.seconds for pair in pairs]),
        num_tokens=np.stack([pair.num_tokens for pair in pairs]),
        device=np.stack([pair.device for pair in pairs]),
        strata=tuple(strata),
        metric=metric,
        design="two-device" if num_devices == 2 else "one-device",
    )


def _metric_problems(replies: Sequence[Reply], metric: str) -> list[str]:
    if metric == "latency":
        return []
    for reply in replies:
        if reply.first_ns is None or reply.last_ns is None:
            return [f"{reply.request_id}: the engine reports no arrival times, which {metric} needs"]
        inside = reply.sent_ns - CLOCK_SLACK_NS <= reply.first_ns <= reply.last_ns <= reply.received_ns + CLOCK_SLACK_NS
        if not inside:
            return [f"{reply.request_id}: the engine's arrival times lie outside of what the client saw"]
        if reply.first_ns == reply.last_ns and reply.num_tokens > 1:
            return [f"{reply.request_id}: all tokens arrived at once, so {metric} is not to be seen"]
    return []


def _num_diverging(run: Sequence[Sequence[Reply]]) -> int:
    return sum(stock.ids_sha256 != candidate.ids_sha256 for stock, candidate in zip(run[0], run[1], strict=True))
