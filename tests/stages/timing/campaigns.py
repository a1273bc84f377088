"""Campaigns of the toy engine on cpu:0 and cpu:1, small enough for a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lossguard.devices.leases import LeaseBook
from lossguard.devices.names import parse_devices
from lossguard.devices.telemetry import TelemetryLimits
from lossguard.records import Request, SamplingParams
from lossguard.stages.timing.arms import ArmSystem
from lossguard.stages.timing.campaign import Circumstances, Hooks, Measured, run_campaign
from lossguard.stages.timing.design import make_nonces, plan_runs, stratum
from lossguard.stages.timing.judging import SpeedCase, SpeedVerdict, judge_speed, planned_looks
from lossguard.stages.timing.runner import RunSettings
from lossguard.timing.base import NoiseProfile
from lossguard.timing_plan import Timing

ENGINE = "tests.stages.timing.toy_engine:create"
ANY_LOAD = TelemetryLimits(foreign_load=1.0, stolen=1.0)
NOISE = NoiseProfile(
    pair_means=(0.02, -0.03, 0.01, -0.02, 0.04, -0.01, 0.02, -0.02),
    pair_throughputs=(0.02, -0.03, 0.01, -0.02, 0.04, -0.01, 0.02, -0.02),
    request_sd=0.1,
)


def requests(count: int, name: str = "p", tokens: int = 6, *, fixed_length: bool = True) -> tuple[Request, ...]:
    """Prompts of 24 ids."""
    return tuple(
        Request(
            id=f"{name}{index}",
            prompt_ids=tuple(range(3 + index, 27 + index)),
            sampling=SamplingParams(max_tokens=tokens, ignore_eos=fixed_length),
            set="toy",
            cluster=f"{name}{index}",
        )
        for index in range(count)
    )


@dataclass
class ToyCampaign:
    """One campaign; ``run`` may be called again to resume it."""

    folder: Path
    stock: Mapping[str, Any] = field(default_factory=dict)
    candidate: Mapping[str, Any] = field(default_factory=dict)
    pairs: int = 4
    num_requests: int = 6
    devices: Sequence[str] = ("cpu:0", "cpu:1")
    relaunch: str = "reset"
    nonce_tokens: int = 8
    limits: TelemetryLimits = ANY_LOAD
    metric: str = "latency"
    arrivals_per_second: float | None = None
    request_seconds: float = 60.0
    first_pair: int = 0
    fixed_length: bool = True

    def __post_init__(self) -> None:
        reset = {"can_reset": True} if self.relaunch == "reset" else {}
        speed = {"token_seconds": 0.002}
        self.stock, self.candidate = {**speed, **reset, **self.stock}, {**speed, **reset, **self.candidate}
        self.notes: list[str] = []

    @property
    def settings(self) -> RunSettings:
        """What the runner gets."""
        timed = requests(self.num_requests, fixed_length=self.fixed_length)
        num_runs = 2 * (self.pairs + self.first_pair)
        return RunSettings(
            systems=(self._system("stock", self.stock), self._system("candidate", self.candidate)),
            devices=parse_devices(self.devices),
            requests=timed,
            warm_up=requests(2, "w", fixed_length=self.fixed_length),
            nonces=make_nonces(timed, seed=1, num_tokens=self.nonce_tokens, num_runs=num_runs),
            concurrency=1,
            relaunch=self.relaunch,
            launch_seconds=60.0,
            request_seconds=self.request_seconds,
            limits=self.limits,
            folder=self.folder,
            arrivals_per_second=self.arrivals_per_second,
        )

    def run(self, hooks: Hooks | None = None, book: LeaseBook | None = None, wait_seconds: float = 60.0) -> Measured:
        """Measure what is missing."""
        runs = plan_runs(self.pairs, num_devices=len(self.devices), order="abba", seed=1, first_pair=self.first_pair)
        around = Circumstances(
            book=book or LeaseBook(self.folder.parent / "leases"),
            purpose="a test",
            wait_seconds=wait_seconds,
            metric=self.metric,
        )
        given = hooks or Hooks(note=self.notes.append, progress=lambda _count: None)
        return run_campaign(self.settings, runs, around, given)

    def judged(self, timing: Timing | None = None, noise: NoiseProfile | None = NOISE) -> SpeedVerdict:
        """Measure and judge."""
        return judged(self, self.run(), timing or Timing(pairs=self.pairs), noise)

    @property
    def run_files(self) -> list[str]:
        """Names of what is on disk."""
        return sorted(path.name for path in (self.folder / "runs").glob("*"))

    def _system(self, name: str, options: Mapping[str, Any]) -> ArmSystem:
        return ArmSystem(name=name, engine=ENGINE, model_path="none", options=options)


def judged(campaign: ToyCampaign, measured: Measured, timing: Timing, noise: NoiseProfile | None) -> SpeedVerdict:
    """The verdict on what a campaign has."""
    case = SpeedCase(
        timing=timing,
        strata=tuple(stratum(request) for request in requests(campaign.num_requests)),
        num_devices=len(campaign.devices),
        pairs=measured.pairs,
        noise=noise,
        looks=planned_looks(timing),
        problems=measured.problems,
    )
    return judge_speed(case)


def resumed(campaign: ToyCampaign, **changes: Any) -> ToyCampaign:
    """The same campaign in a second call."""
    return replace(campaign, **changes)
