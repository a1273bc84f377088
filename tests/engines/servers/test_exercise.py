"""Exercises against servers over HTTP: requests go out in waves, and what did not fire is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from lossguard.config import SystemConfig
from lossguard.errors import UsageError
from lossguard.gate import run_gate
from lossguard.gate_result import GateResult
from lossguard.plan import Budget, Plan
from lossguard.records import CheckResult, ServedOutput, Verdict
from lossguard.run_folder import read_outputs
from tests.engines.servers import loopback
from tests.engines.servers.conftest import Bench
from tests.engines.servers.loopback import Loopback
from tests.engines.servers.spoken import Asked, Spoken, ToyModel
from tests.gate.toy import ToyEngine, handle

BUDGET = Budget(name="exercise", num_requests=24, max_tokens=8, num_calibration=6)


def judge(
    bench: Bench, url: str, exercise: dict[str, Any], *, repeats: int = 1, stock: str | None = None, **options: Any
) -> GateResult:
    candidate = SystemConfig(name="candidate", engine="sglang", options={"url": url, **options}, exercise=exercise)
    systems = {"stock": SystemConfig(name="stock", engine="sglang", options={"url": stock or url})}
    config = replace(bench.stack.config, systems={**systems, "candidate": candidate})
    folder = bench.stack.folder / "runs"
    return run_gate(Plan(config, candidates=["candidate"], budget=BUDGET, folder=folder, repeats=repeats))


def vacuity(result: GateResult) -> CheckResult:
    return result.claim("candidate/lossless").evidence.check("vacuity")


def outputs_of(result: GateResult) -> dict[str, ServedOutput]:
    return read_outputs(result.run_folder / "candidate" / "outputs.jsonl")[0]


@pytest.fixture
def slow_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slowly(events: Iterator[str]) -> AsyncIterator[str]:
        for item in events:
            yield item
            await asyncio.sleep(0.02)

    monkeypatch.setattr(loopback, "_slowly", slowly)


@pytest.mark.usefixtures("slow_streams")
def test_concurrency_rises_in_waves_and_is_seen_in_the_arrivals(bench: Bench) -> None:
    with Loopback("sglang", block=1) as server:
        fired = judge(bench, server.url, {"concurrency": [1, 4]})
        missed = judge(bench, server.url, {"concurrency": [1, 400]})
    assert vacuity(fired).verdict is Verdict.PASS, vacuity(fired).summary
    assert vacuity(missed).verdict is Verdict.INCONCLUSIVE
    assert "400 were to" in vacuity(missed).summary
    under_way = [output.telemetry["under_way"][0] for output in outputs_of(fired).values()]
    assert under_way.count(1.0) >= 3, "two alone, and the first of the next level"
    assert max(under_way) == 4.0


def test_replies_that_arrive_whole_tell_no_concurrency(bench: Bench) -> None:
    with Loopback("sglang") as server:
        result = judge(bench, server.url, {"concurrency": [1, 4]}, stream=False)
    assert vacuity(result).verdict is Verdict.INCONCLUSIVE
    assert "stream = true" in vacuity(result).summary
    assert result.claim("candidate/lossless").verdict is not Verdict.PASS


class Cache:
    """Prompts that have been read before come from the cache, as a server with a prefix cache says."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, ...]] = set()

    def __call__(self, spoken: Spoken, asked: Asked) -> Spoken:
        hit = asked.prompt_ids in self.seen
        self.seen.add(asked.prompt_ids)
        return replace(spoken, cached=len(asked.prompt_ids) - 1 if hit else 0)


def test_repeats_miss_the_cache_first_and_hit_it_twice(bench: Bench) -> None:
    with Loopback("sglang", ToyModel(reply_faults=(Cache(),))) as server, Loopback("sglang") as stock:
        result = judge(bench, server.url, {"repeats": 3}, repeats=3, stock=stock.url)
        too_few = judge(bench, server.url, {"repeats": 3}, stock=stock.url)
    assert vacuity(result).verdict is Verdict.PASS, vacuity(result).summary
    assert f"{BUDGET.num_requests} of {BUDGET.num_requests} prompts" in vacuity(result).summary
    assert vacuity(too_few).verdict is Verdict.INCONCLUSIVE
    assert "--repeats" in vacuity(too_few).summary


def test_preemption_must_have_happened(bench: Bench) -> None:
    def preempted(spoken: Spoken, _asked: Asked) -> Spoken:
        return replace(spoken, preempted=1)

    exercise = {"preemption": True, "chunked_prefill": 2, "long": 8}
    with Loopback("sglang") as never, Loopback("sglang", ToyModel(reply_faults=(preempted,))) as always:
        missed = judge(bench, never.url, exercise)
        fired = judge(bench, always.url, exercise)
    assert vacuity(fired).verdict is Verdict.PASS, vacuity(fired).summary
    assert vacuity(missed).verdict is Verdict.INCONCLUSIVE
    assert vacuity(missed).summary == "exercise preemption: no reply was preempted"


def test_an_engine_without_a_pace_is_refused_before_it_serves(bench: Bench) -> None:
    engine = ToyEngine(bench.stack.target)
    made = handle("candidate", engine)
    candidate = replace(made, config=replace(made.config, exercise={"concurrency": [1, 8]}))
    with pytest.raises(UsageError, match="LG0623"):
        run_gate(bench.stack.plan([candidate]))
    assert engine.num_served == 0
