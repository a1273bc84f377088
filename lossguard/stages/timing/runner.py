"""One run: launch the arms (or reset them), warm them up, let them serve in step, and keep everything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lossguard.devices.names import Device, available_cores
from lossguard.devices.telemetry import TelemetryLimits
from lossguard.errors import EngineError
from lossguard.records import Request
from lossguard.stages.timing.arms import Arm, ArmPlace, ArmSystem
from lossguard.stages.timing.channel import Message
from lossguard.stages.timing.client import serve_steps, steps_of
from lossguard.stages.timing.clocks import ClockWatch
from lossguard.stages.timing.design import Nonces, RunPlan, plan_runs
from lossguard.stages.timing.observer import Observer
from lossguard.stages.timing.open_loop import arrival_offsets, serve_trace
from lossguard.stages.timing.run_log import Reply, RunWriter

ARM_NAMES = ("stock", "candidate")
NUM_SETTLING_ROUNDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What is the same for every run of a campaign."""

    systems: tuple[ArmSystem, ArmSystem]
    devices: tuple[Device, ...]
    requests: tuple[Request, ...]  # as both engines can serve them
    warm_up: tuple[Request, ...]  # other prompts
    nonces: Nonces
    concurrency: int
    relaunch: str  # "process" or "reset"
    launch_seconds: float
    request_seconds: float
    limits: TelemetryLimits
    folder: Path
    arrivals_per_second: float | None = None  # None: one step after the other
    trace_seed: int = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Both arms launched once. Seconds are those of the slower one, the first launch's warming included."""

    hellos: Mapping[str, Any]
    launch_seconds: float
    request_seconds: float


@dataclass
class ArmPool:
    """Arms that are running. Under ``relaunch = "reset"`` they live for the campaign, else for one turn."""

    settings: RunSettings
    on_start: Callable[[Device, int], None]
    _kept: dict[tuple[int, int], Arm] = field(default_factory=dict)
    _after_launch: dict[tuple[int, int], Any] = field(default_factory=dict)
    _is_settled: bool = False

    @contextmanager
    def arms(self, turn: Sequence[int], run: RunPlan) -> Iterator[dict[int, Arm]]:
        """The arms of one turn, freshly launched or provably reset."""
        if self.settings.relaunch == "reset":
            yield self._reset_arms(turn, run)
            return
        with ExitStack() as stack:
            started = {arm: self._start(arm, run.devices[arm], stack.callback) for arm in turn}
            for arm in started.values():
                arm.await_hello()
            yield started
            for arm in started.values():
                arm.close()

    def probe(self) -> Probe:
        """Launch each arm once and serve the warm-up block: what the arms say of themselves, and what a run costs."""
        settings = self.settings
        run = RunPlan(pair=0, run=0, devices=(0, len(settings.devices) - 1), turns=((0,), (1,)))
        hellos: dict[str, Any] = {}
        launches, servings = [], []
        for turn in run.turns:
            begun = time.monotonic()
            with self.arms(turn, run) as arms:
                launches.append(time.monotonic() - begun)
                hellos |= {ARM_NAMES[arm]: dict(started.hello) for arm, started in arms.items()}
                begun = time.monotonic()
                serve_steps(arms, steps_of(settings.warm_up, settings.concurrency), settings.request_seconds, _ignore)
                servings.append((time.monotonic() - begun) / len(settings.warm_up))
        return Probe(hellos=hellos, launch_seconds=max(launches), request_seconds=max(servings))

    def groups(self, run: RunPlan, arms: Mapping[int, Arm]) -> dict[str, frozenset[int]]:
        """Process groups by device of this turn: an arm leads a group of its own.

        Kept arms that wait on the device are ours too: on a GPU they hold memory, and would be taken for strangers.
        """
        places = [(run.devices[arm], started) for arm, started in arms.items()]
        waiting = [(device, kept) for (_arm, device), kept in self._kept.items()]
        groups: dict[str, set[int]] = {self.settings.devices[device].name: set() for device, _ in places}
        for device, started in (*places, *waiting):
            if (name := self.settings.devices[device].name) in groups:
                groups[name].add(started.pid)
        return {name: frozenset(group) for name, group in groups.items()}

    def settle(self) -> None:
        """Before the first run of kept arms: start all of them, and let each serve the warm-up block twice, in turns.

        On an H200 a step took 7 % less from the moment that a process came back to a GPU which another had used
        meanwhile. Arms that are launched one by one in the middle of the first pairs would be timed before and after.
        """
        if self.settings.relaunch != "reset" or self._is_settled:
            return
        runs = plan_runs(1, num_devices=len(self.settings.devices), order="abba", seed=0)
        for block in range(NUM_SETTLING_ROUNDS):
            for run in runs[: len(self.settings.devices)]:  # on one device, one run has both places
                for turn in run.turns:
                    with self.arms(turn, run) as arms:
                        _warm_up(self.settings, arms, run, block=f"settle-{block}")
        self._is_settled = True

    def close(self) -> None:
        """End all kept arms."""
        while self._kept:
            self._kept.popitem()[1].close()

    def _start(self, arm: int, device_index: int, on_exit: Callable[[Callable[[], None]], object]) -> Arm:
        settings, device = self.settings, self.settings.devices[device_index]
        place = ArmPlace(
            device=device,
            cores=host_cores(settings.devices)[device_index],
            folder=settings.folder / f"{ARM_NAMES[arm]}-arm",
            launch_seconds=settings.launch_seconds,
        )
        started = Arm(settings.systems[arm], place)
        on_exit(started.kill)
        self.on_start(device, started.pid)
        started.begin()
        return started

    def _reset_arms(self, turn: Sequence[int], run: RunPlan) -> dict[int, Arm]:
        places = {arm: (arm, run.devices[arm]) for arm in turn}
        new = [place for place in places.values() if place not in self._kept]
        for place in new:
            self._kept[place] = self._start(*place, lambda _kill: None)
        for place in new:
            hello = self._kept[place].await_hello()
            if not hello["can_reset"]:
                raise no_reset(self.settings.systems[place[0]].name)
        for place in places.values():
            self._reset(place)
        return {arm: self._kept[place] for arm, place in places.items()}

    def _reset(self, place: tuple[int, int]) -> None:
        """Reset, and require the very facts that the first reset gave."""
        arm = self._kept[place]
        arm.send(Message(kind="reset"))
        facts = dict(arm.receive("reset", self.settings.launch_seconds).body["facts"])
        if not facts:
            raise no_reset(arm.system.name)
        before = self._after_launch.setdefault(place, facts)
        if before != facts:
            raise arm.failure(f"was reset to another state than at first: {facts} against {before}")


def host_cores(devices: Sequence[Device]) -> tuple[tuple[int, ...], ...]:
    """Cores that the process of each device is pinned to: its own, or beside a GPU its share of the host's."""
    if devices[0].kind == "cpu":
        return tuple(device.cores for device in devices)
    cores = available_cores()
    share = len(cores) // len(devices)
    if len(devices) == 1 or share == 0:
        return tuple(() for _ in devices)
    return tuple(cores[index * share : (index + 1) * share] for index in range(len(devices)))


def measure_run(pool: ArmPool, run: RunPlan, progress: Callable[[int], None]) -> None:
    """Measure one run and write it. Raises EngineError LG1004, LG1005; StorageError LG0607; what came is kept."""
    settings = pool.settings
    writer = RunWriter(run_path(settings.folder, run), _head(settings, run))
    watch = ClockWatch()
    observer = Observer(settings.devices, settings.limits)
    hellos: dict[str, Any] = {}
    for turn in run.turns:
        with pool.arms(turn, run) as arms:
            hellos |= {ARM_NAMES[arm]: dict(started.hello) for arm, started in arms.items()}
            _warm_up(settings, arms, run)
            requests = settings.nonces.for_run(settings.requests, run, block="timed")

            def keep(replies: Sequence[Reply]) -> None:
                writer.replies(replies)
                progress(len(replies))

            with observer.watching(pool.groups(run, arms), writer.sample):
                _serve(settings, arms, requests, keep)
    problems = [*watch.problems(), *observer.problems()]
    writer.end(
        {
            "problems": problems,
            "notes": observer.notes(),
            "arms": hellos,
            "clock": watch.facts(),
        }
    )


def run_path(folder: Path, run: RunPlan) -> Path:
    """The file of a run."""
    return folder / "runs" / f"{run.name}.jsonl"


def no_reset(system: str) -> EngineError:
    """EngineError LG1005."""
    return EngineError(
        f"the engine of {system!r} cannot be reset provably: it has no reset() that returns facts of its state",
        why="without a new process or a proved reset, the second run could live on what the first has left behind",
        fix='give the engine a reset() -> Mapping of facts, or leave relaunch at "process"',
        code="LG1005",
    )


def _serve(
    settings: RunSettings, arms: Mapping[int, Arm], requests: Sequence[Request], keep: Callable[[Sequence[Reply]], None]
) -> None:
    """In steps, or by the arrival trace, which is the same in every run."""
    if settings.arrivals_per_second is None:
        serve_steps(arms, steps_of(requests, settings.concurrency), settings.request_seconds, keep)
        return
    dues = arrival_offsets(len(requests), settings.arrivals_per_second, settings.trace_seed)
    serve_trace(arms, steps_of(requests, 1), dues, settings.request_seconds, keep)


def _warm_up(settings: RunSettings, arms: Mapping[int, Arm], run: RunPlan, block: str = "warm-up") -> None:
    """A block of other requests, whose replies are thrown away; ends when every arm has answered all of it."""
    requests = settings.nonces.for_run(settings.warm_up, run, block=block)
    serve_steps(arms, steps_of(requests, settings.concurrency), settings.request_seconds, _ignore)


def _ignore(_replies: Sequence[Reply]) -> None:
    """Replies of a warm-up are thrown away."""


def _head(settings: RunSettings, run: RunPlan) -> dict[str, Any]:
    return {
        "pair": run.pair,
        "run": run.run,
        "devices": {ARM_NAMES[arm]: settings.devices[index].name for arm, index in enumerate(run.devices)},
        "turns": [[ARM_NAMES[arm] for arm in turn] for turn in run.turns],
        "begun_unix_ns": time.time_ns(),
    }
