"""Detection against tokens per arm: the gate and its rivals on samples of recorded outputs of faulty systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossguard.checks.base import CheckInput, has_evidence
from lossguard.checks.registry import builtin_checks
from lossguard.checks.seeds import stream_seed
from lossguard.listener import Listener
from lossguard.records import Verdict
from lossguard.selftest.compact import compact_systems, read_compact
from lossguard.selftest.intervals import Share
from lossguard.selftest.processes import one_thread_pool
from lossguard.selftest.recorded import Sampler, read_comparison, recorded_systems
from lossguard.selftest.rivals import RIVALS

GATE = "lossguard FAIL"
RED = "lossguard not PASS"
RULES = (GATE, RED, *RIVALS)
TOKENS = (500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
DETECTED = 0.9
NUM_SAMPLES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """How often one rule is red on one system, by tokens per arm."""

    system: str
    rule: str
    tokens: tuple[float, ...]  # mean of the candidate's
    shares: tuple[Share, ...]

    @property
    def tokens_to_detection(self) -> float | None:
        """The fewest tokens per arm from which on at least 90 of 100 samples are red; None if there are none."""
        found = None
        for tokens, share in zip(self.tokens[::-1], self.shares[::-1], strict=True):
            if share.value < DETECTED:
                break
            found = tokens
        return found

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "system": self.system,
            "rule": self.rule,
            "tokens": list(self.tokens),
            "red": [share.count for share in self.shares],
            "samples": [share.number for share in self.shares],
            "tokens_to_detection": self.tokens_to_detection,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Curve:
        """Inverse of ``to_json``."""
        shares = zip(data["red"], data["samples"], strict=True)
        return cls(
            system=data["system"],
            rule=data["rule"],
            tokens=tuple(data["tokens"]),
            shares=tuple(Share(count=count, number=number) for count, number in shares),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionPlan:
    """What to sample: finished runs or exports of them, their systems (none: all), tokens per arm, samples a size.

    In samples of ``controls`` the arms of each request are exchanged at random, so that both are one system whatever
    the run's own draw: what is red there is a false alarm.
    """

    runs: tuple[Path, ...]
    systems: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()  # lossless ones
    tokens: tuple[int, ...] = TOKENS
    num_samples: int = NUM_SAMPLES
    seed: int = 17
    num_workers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """All samples of one size of one system."""

    run: Path
    system: str
    tokens: int
    num_samples: int
    seed: int
    is_control: bool


def measure_detection(plan: DetectionPlan, listener: Listener) -> list[Curve]:
    """Curves of every system and rule. Seeded by system and size: the number of processes changes nothing."""
    run_of = {system: run for run in plan.runs for system in systems_of(run)}
    systems = plan.systems or tuple(run_of)
    tasks = [
        Task(
            run=run_of[system],
            system=system,
            tokens=tokens,
            num_samples=plan.num_samples,
            seed=plan.seed,
            is_control=system in plan.controls,
        )
        for system in systems
        for tokens in sorted(plan.tokens, reverse=True)  # the long ones first
    ]
    found: dict[tuple[str, int], tuple[float, dict[str, int]]] = {}
    with (
        listener.stage("detection", len(tasks), "sizes") as progress,
        one_thread_pool(plan.num_workers) as pool,
    ):
        waiting = {pool.submit(run_task, task): task for task in tasks}
        for done in as_completed(waiting):
            task = waiting[done]
            found[task.system, task.tokens] = done.result()
            progress(1)
    return [_curve(system, rule, plan, found) for system in systems for rule in RULES]


def _curve(
    system: str, rule: str, plan: DetectionPlan, found: Mapping[tuple[str, int], tuple[float, dict[str, int]]]
) -> Curve:
    parts = [found[system, tokens] for tokens in sorted(plan.tokens)]
    return Curve(
        system=system,
        rule=rule,
        tokens=tuple(mean for mean, _ in parts),
        shares=tuple(Share(count=red[rule], number=plan.num_samples) for _, red in parts),
    )


def systems_of(run: Path) -> tuple[str, ...]:
    """The candidates of a run folder, or of a folder of compact exports."""
    return tuple(compact_systems(run)) if _is_export(run) else recorded_systems(run)


def _is_export(run: Path) -> bool:
    return not (run / "plan.json").exists()


def run_task(task: Task) -> tuple[float, dict[str, int]]:
    """Mean tokens of the candidate, and how many samples each rule finds red."""
    given = read_compact(task.run, task.system) if _is_export(task.run) else read_comparison(task.run, task.system)
    sampler = Sampler(given=given)
    per_request = given.stock.scores.num_tokens / len(given.requests)
    num_requests = max(round(task.tokens / per_request), 2)
    red: dict[str, int] = dict.fromkeys(RULES, 0)
    total = 0
    for number in range(task.num_samples):
        seed = stream_seed(task.seed, f"{task.system} {task.tokens} {number}")
        sample = sampler.draw(num_requests, seed, exchanges=task.is_control)
        total += sample.candidate.scores.num_tokens
        for rule in red_rules(sample):
            red[rule] += 1
    return total / task.num_samples, red


def red_rules(sample: CheckInput) -> Sequence[str]:
    """The rules that are red on one sample."""
    verdict = Verdict.combine(
        [
            check.run(sample).verdict
            for check in builtin_checks()
            if check.applies(sample.requests) and has_evidence(check, sample)
        ]
    )
    ours = [GATE] * (verdict is Verdict.FAIL) + [RED] * (not verdict.is_pass)
    return [*ours, *(name for name, rule in RIVALS.items() if rule(sample))]
