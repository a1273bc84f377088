"""Scoring overlaps serving where no device is shared: faster, with the same scores, and a run that resumes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from lossguard.config import ScorerConfig, SystemConfig
from lossguard.engines.base import EngineSpec
from lossguard.errors import EngineError, ScorerError
from lossguard.gate import run_gate
from lossguard.listener import SilentListener
from lossguard.plan import Budget, Plan, SystemHandle
from lossguard.records import ForcedScores, Request, ServedOutput
from lossguard.scoring.base import ScoringJob
from lossguard.scoring.columns import load_scores
from lossguard.stages.early_scoring import PIECE_REQUESTS
from tests.gate.conftest import Stack, make_stack
from tests.gate.toy import ToyEngine, ToyScorer, ToyTarget

BUDGET = Budget(name="overlap", num_requests=144, max_tokens=6, num_calibration=8)
SECONDS = 0.012  # to serve one reply; a score takes half of it, and every request has two


@dataclass
class SlowEngine(ToyEngine):
    """A process of its own, as far as the run can tell: waiting stands for its work."""

    seconds: float = SECONDS
    devices: frozenset[str] | None = frozenset({"0"})

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        for output in super().serve(requests):
            time.sleep(self.seconds)
            yield output


@dataclass
class SlowScorer(ToyScorer):
    seconds: float = SECONDS / 2
    calls: list[int] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    fails_at: int | None = None

    def score(self, jobs: Sequence[ScoringJob], *, progress: Callable[[int], None] | None = None) -> list[ForcedScores]:
        self.calls.append(len(jobs))
        self.threads.add(threading.current_thread().name.partition("_")[0])
        if self.fails_at is not None and len(self.calls) > self.fails_at:
            raise ScorerError("the toy scorer broke", why="it was told to", fix="resume", code="LG0509")
        time.sleep(self.seconds * sum(len(job.outputs) for job in jobs))
        return super().score(jobs, progress=progress)


@dataclass
class Clock(SilentListener):
    """When each stage began and ended, seconds."""

    times: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def stage(self, title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        self.times[title] = [time.monotonic()]
        yield lambda _advance: None
        self.times[title].append(time.monotonic())


def handle(name: str, engine: ToyEngine) -> SystemHandle:
    def create(_spec: EngineSpec) -> ToyEngine:
        return engine

    return SystemHandle(config=SystemConfig(name=name, engine="toy"), create=create)


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    made = make_stack(tmp_path, monkeypatch)
    made.scorer = SlowScorer(ToyTarget())
    return made


def plan_of(
    stack: Stack, candidate: ToyEngine, *, options: Mapping[str, Any] | None = None, resume: Path | None = None
) -> Plan:
    config = replace(stack.config, scorer=ScorerConfig(options=options or {"device": "cuda:1"}))
    stock = handle("stock", SlowEngine(stack.target, seconds=0.0))
    return Plan(
        config,
        baseline=stock,
        candidates=[handle("candidate", candidate)],
        budget=BUDGET,
        folder=stack.folder / "runs",
        resume=resume,
    )


def slow_scorer(stack: Stack) -> SlowScorer:
    assert isinstance(stack.scorer, SlowScorer)
    return stack.scorer


def scores_of(run: Path) -> list[tuple[str, bytes]]:
    paths = sorted((run / "candidate").glob("*scores-*.safetensors"))
    return [(path.name, load_scores(path).gap.tobytes()) for path in paths]


def pieces(calls: Sequence[int]) -> list[int]:
    """Those of the test replies: 144 requests are a shard of 120 and one of 24."""
    return [count for count in calls if count == PIECE_REQUESTS]


def test_judging_costs_less_than_half_as_much_again_as_serving(stack: Stack) -> None:
    clock = Clock()
    result = run_gate(plan_of(stack, SlowEngine(stack.target)), listener=clock)
    serving, scoring = clock.times["candidate: serving"], clock.times["candidate: scoring"]
    assert scoring[1] - serving[0] < 1.5 * (serving[1] - serving[0])
    assert "lossguard-scoring" in slow_scorer(stack).threads
    assert "scoring overlaps serving" in (result.run_folder / "log.txt").read_text()


def test_a_shared_device_is_never_used_by_both(stack: Stack) -> None:
    result = run_gate(plan_of(stack, SlowEngine(stack.target, seconds=0.0), options={"device": "cuda:0"}))
    assert slow_scorer(stack).threads == {"MainThread"}
    assert "candidate and the scorer share a device" in (result.run_folder / "log.txt").read_text()


def test_an_engine_of_this_process_is_scored_afterwards(stack: Stack) -> None:
    run_gate(plan_of(stack, SlowEngine(stack.target, seconds=0.0, devices=None)))
    assert slow_scorer(stack).threads == {"MainThread"}


def test_the_same_pieces_are_scored_after_an_interruption(stack: Stack) -> None:
    scorer = slow_scorer(stack)
    scorer.seconds = 0.0

    def same(seconds: float, dies_after: int | None = None) -> SlowEngine:
        """Without noise, a reply does not depend on what was left to be asked."""
        return SlowEngine(stack.target, noise_nats=0.0, seconds=seconds, dies_after=dies_after)

    whole = run_gate(plan_of(stack, same(0.0)))
    expected = pieces(scorer.calls)
    assert len(expected) == BUDGET.num_requests // PIECE_REQUESTS
    scorer.calls.clear()
    with pytest.raises(EngineError):
        run_gate(plan_of(stack, same(0.001, dies_after=70)))
    run = sorted((stack.folder / "runs").glob("run-*"))[-1]
    assert not list((run / "candidate").glob("scores-*")), "a shard appears as a whole or not at all"
    scorer.calls.clear()
    resumed = run_gate(plan_of(stack, same(0.0), resume=run))
    assert pieces(scorer.calls) == expected
    assert scores_of(resumed.run_folder) == scores_of(whole.run_folder)
    scorer.calls.clear()
    again = run_gate(plan_of(stack, same(0.0), resume=run))
    assert scorer.calls == [], "everything was on disk"
    assert again.verdict is resumed.verdict


def test_a_scorer_that_breaks_is_an_error_of_the_run_and_keeps_the_replies(stack: Stack) -> None:
    scorer = slow_scorer(stack)
    scorer.seconds = 0.0
    run_gate(plan_of(stack, SlowEngine(stack.target, seconds=0.0)))
    scorer.fails_at = len(scorer.calls) - len(pieces(scorer.calls)) + 1
    scorer.calls.clear()
    with pytest.raises(ScorerError, match="broke"):
        run_gate(plan_of(stack, SlowEngine(stack.target, seconds=0.0)))
    run = sorted((stack.folder / "runs").glob("run-*"))[-1]
    assert len((run / "candidate" / "outputs.jsonl").read_text().splitlines()) == BUDGET.num_requests
    assert threading.active_count() < 10
