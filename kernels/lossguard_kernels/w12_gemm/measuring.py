"""Times of calls on a GPU: captured in a CUDA graph, operands rotated past the L2 cache, medians of replays."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long one measurement takes: calls in a graph, and replays of it that are timed."""

    least_microseconds: float = 1500.0
    num_replays: int = 15


QUICK = Effort(least_microseconds=500.0, num_replays=5)


def microseconds(calls: Sequence[Call], guess: float, effort: Effort | None = None) -> float:
    """Median time of one call.

    ``calls`` do the same with operands of their own, so that none finds its operands in the cache; ``guess`` is the
    expected time of one in microseconds and decides how many a graph holds.
    """
    chosen = effort or Effort()
    rounds = max(1, round(chosen.least_microseconds / (guess * len(calls))))
    graph = captured(calls, rounds)
    for _ in range(2):
        graph.replay()
    times: list[float] = []
    for _ in range(chosen.num_replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / (rounds * len(calls)))
    return statistics.median(times)


def captured(calls: Sequence[Call], rounds: int = 1) -> torch.cuda.CUDAGraph:
    """A graph of all calls, ``rounds`` times; each is called once before, so that nothing is set up inside."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    # torch.cuda.graph() would collect garbage and empty the allocator's cache first: a tenth of a second each time.
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            for _ in range(rounds):
                for call in calls:
                    call()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


def read_bandwidth(num_bytes: int = 2 << 30) -> float:
    """Bytes per second at which the device reads memory: a sum over more than its cache holds."""
    source = torch.ones(num_bytes // 4, dtype=torch.float32, device="cuda")
    out = torch.empty((), dtype=torch.float32, device="cuda")
    return num_bytes / microseconds([lambda: torch.sum(source, dim=0, out=out)], num_bytes / 4e6) * 1e6
