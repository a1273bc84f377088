"""What users feel, of every complete run of a campaign: latency, time to first token, between tokens, goodput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lossguard.stages.timing.run_log import Reply, RunRecord, read_run
from lossguard.timing.metrics import RequestTrace, ServiceTarget, goodput, latency, summarise
from lossguard.timing_plan import Timing

ARM_NAMES = ("stock", "candidate")


def summarise_runs(folder: Path, timing: Timing) -> dict[str, Any]:
    """Per arm, over all complete runs in a campaign's folder. Arrivals inside a reply are the arm's own telling."""
    records = [read_run(path) for path in sorted((folder / "runs").glob("pair-*.jsonl"))]
    complete = [record for record in records if record is not None and record.is_complete]
    return {name: _arm(complete, arm, timing) for arm, name in enumerate(ARM_NAMES)} if complete else {}


def _arm(records: Sequence[RunRecord], arm: int, timing: Timing) -> dict[str, Any]:
    replies = [reply for record in records for reply in record.arm(arm)]
    first = [(reply.first_ns - _due(reply)) / 1e9 for reply in replies if reply.first_ns is not None]
    between = [_between(reply) for reply in replies if reply.first_ns is not None and reply.num_tokens > 1]
    return {
        "latency_seconds": _plain(latency([_trace(reply) for reply in replies])),
        "time_to_first_token_seconds": _plain(summarise(first)),
        "inter_token_seconds": _plain(summarise(between)),
        "goodput": [_goodput(record.arm(arm), timing) for record in records] if timing.arrivals_per_second else None,
    }


def _goodput(replies: Sequence[Reply], timing: Timing) -> dict[str, Any]:
    traces = [_trace(reply) for reply in replies]
    dues = [trace.due for trace in traces]
    target = ServiceTarget(latency=timing.target_latency_seconds)
    return asdict(goodput(traces, target, trace_seconds=max(max(dues) - min(dues), 1e-9)))


def _trace(reply: Reply) -> RequestTrace:
    """On the client's clock. Times between first and last token are spread evenly: only their mean is used."""
    first = reply.received_ns if reply.first_ns is None else min(reply.first_ns, reply.received_ns)
    tokens = np.linspace(first / 1e9, reply.received_ns / 1e9, reply.num_tokens)
    return RequestTrace(due=_due(reply) / 1e9, sent=reply.sent_ns / 1e9, tokens=tuple(tokens.tolist()))


def _between(reply: Reply) -> float:
    assert reply.first_ns is not None, "asked only of replies with arrival times"
    last = reply.received_ns if reply.last_ns is None else reply.last_ns
    return (last - reply.first_ns) / 1e9 / (reply.num_tokens - 1)


def _due(reply: Reply) -> int:
    return reply.sent_ns if reply.due_ns is None else reply.due_ns


def _plain(summary: Any) -> dict[str, Any] | None:
    return None if summary is None else asdict(summary)
