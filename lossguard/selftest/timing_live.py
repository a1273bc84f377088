"""Live checks of the timing instrument: stock against itself, and a slowdown and a speed-up of known length.

Everything runs as a campaign does: processes of their own on two pinned devices, swap pairs, the A/A profile first.
"""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lossguard.devices.leases import LeaseBook
from lossguard.devices.names import Device, default_devices, parse_devices
from lossguard.devices.telemetry import TelemetryLimits
from lossguard.host_facts import host_facts
from lossguard.listener import Listener
from lossguard.records import CheckResult, Request, SamplingParams, Verdict
from lossguard.selftest.base import SelftestOptions, SelftestPart, Table
from lossguard.stages.timing.arms import ArmSystem
from lossguard.stages.timing.campaign import Circumstances, Hooks, Measured, run_campaign
from lossguard.stages.timing.campaign_key import require_same_key
from lossguard.stages.timing.design import make_nonces, plan_runs, stratum
from lossguard.stages.timing.judging import SpeedCase, judge_speed, planned_looks
from lossguard.stages.timing.pair_times import to_pair_times
from lossguard.stages.timing.runner import RunSettings
from lossguard.stages.timing.source_hash import sources_sha256
from lossguard.timing.base import NoiseProfile
from lossguard.timing.noise import describe_noise, noise_profile
from lossguard.timing.planning import Plan as PowerPlan
from lossguard.timing.planning import minimum_promotable_gain
from lossguard.timing_plan import Timing

NAME = "timing-live"
ENGINE = "lossguard.selftest.clockwork_engine:create"
PROMPT_IDS = 32
NUM_WARM_UP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """Sizes of the live checks. ``devices``: as in ``lossguard time``; none: as this machine suggests."""

    folder: Path
    devices: tuple[str, ...] = ()
    pairs: int = 8
    noise_pairs: int = 8
    requests: int = 12
    tokens: int = 24
    token_seconds: float = 0.002
    change: float = 0.05  # planted, as a fraction of a token's time
    seed: int = 17
    engine: str = ENGINE
    relaunch: str = "process"
    max_foreign_load: float = 0.2
    max_stolen: float = 0.02
    wait_seconds: float = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedCase:
    """Options of both systems, the gain that they plant, and what the instrument must say: a verdict or "not PASS"."""

    name: str
    stock: Mapping[str, Any]
    candidate: Mapping[str, Any]
    planted_gain: float
    required: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCase:
    """One planted case, what it must get, and what it got."""

    name: str
    planted_gain: float
    required: str
    verdict: Verdict
    is_met: bool
    check: CheckResult


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveResult:
    """All cases. FAIL: a case got a verdict that it must not get. INCONCLUSIVE: disturbed, or too noisy to tell."""

    verdict: Verdict
    summary: str
    cases: tuple[LiveCase, ...]
    evidence: Mapping[str, Any]
    problems: tuple[str, ...]


def run(options: SelftestOptions, listener: Listener) -> SelftestPart:
    """The part ``timing-live``; ``device`` may name two devices with a comma between, ``resume`` an earlier folder."""
    given = LiveOptions(
        folder=options.resume or _new_folder(options.folder),
        devices=tuple(options.device.split(",")) if options.device else (),
        seed=options.seed,
    )
    return to_part(time_planted_changes(given, listener))


def to_part(result: LiveResult) -> SelftestPart:
    """The outcome as a part of the selftest."""
    rows = tuple(
        (
            case.name,
            f"{100 * case.planted_gain:+.2f} %",
            case.check.candidate,
            case.check.bound,
            case.check.limit,
            case.verdict.value,
            case.required,
        )
        for case in result.cases
    )
    columns = ("case", "planted", "gain", "bounds", "limit", "verdict", "must be")
    cases = [{**asdict(case), "verdict": case.verdict.value, "check": case.check.to_json()} for case in result.cases]
    return SelftestPart(
        name=NAME,
        verdict=result.verdict,
        summary=result.summary,
        tables=(Table(title="planted changes", columns=columns, rows=rows),) if rows else (),
        evidence={**result.evidence, "cases": cases},
        problems=result.problems,
    )


def time_planted_changes(options: LiveOptions, listener: Listener) -> LiveResult:
    """Measure noise, then stock against itself, a slower and a faster candidate. Raises UsageError LG1001.

    A second call with the same folder resumes, and is refused (LG1012) with anything else than the first asked.
    """
    stock = {"token_seconds": options.token_seconds}
    changed = {"token_seconds": options.token_seconds * (1 + options.change)}
    gain = options.change
    cases = (
        PlantedCase(name="same", stock=stock, candidate=stock, planted_gain=0.0, required="not PASS"),
        PlantedCase(name="slower", stock=stock, candidate=changed, planted_gain=1 / (1 + gain) - 1, required="FAIL"),
        PlantedCase(name="faster", stock=changed, candidate=stock, planted_gain=gain, required="PASS"),
    )
    return time_cases(options, cases, listener)


def time_cases(options: LiveOptions, cases: Sequence[PlantedCase], listener: Listener) -> LiveResult:
    """Measure the noise of the first case's stock, then every case. Raises UsageError LG1001, LG1003."""
    devices, why = _devices(options)
    _require_same_selftest(options, devices, cases)
    with listener.stage("timing selftest", _num_replies(options, len(cases)), "replies") as progress:
        hooks = Hooks(note=listener.message, progress=progress)
        quiet = replace(cases[0], name="noise", candidate=cases[0].stock)
        noise = _campaign(options, devices, quiet, options.noise_pairs, hooks)
        if noise.problems:
            return _disturbed(noise.problems)
        times = to_pair_times(noise.pairs, _strata(options), len(devices), metric="latency")
        profile = replace(noise_profile(times), keeps_launches=options.relaunch == "reset")
        judged = tuple(_judged(options, devices, case, profile, hooks) for case in cases)
    return _result(options, judged, profile, why)


def _new_folder(root: Path) -> Path:
    """One that no call before has used, so that nothing is taken from a run of other code or another day."""
    number = 1
    while True:
        folder = root / f"{NAME}-{number:03d}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder


def _require_same_selftest(options: LiveOptions, devices: tuple[Device, ...], cases: Sequence[PlantedCase]) -> None:
    """Runs that are on disk count only for the very same question, engine and machine."""
    asked = {name: value for name, value in asdict(options).items() if name not in ("folder", "wait_seconds")}
    key = {
        "options": asked,
        "devices": [device.name for device in devices],
        "cases": [asdict(case) for case in cases],
        "engine": _engine_sha256(options.engine),
        "host": host_facts()[0],
    }
    require_same_key(options.folder, json.loads(json.dumps(key, sort_keys=True, default=str)), "the timing selftest")


def _engine_sha256(engine: str) -> str | None:
    """Of the sources of an engine ``module:function``, without importing them here."""
    spec = importlib.util.find_spec(engine.partition(":")[0])
    return None if spec is None or spec.origin is None else sources_sha256(Path(spec.origin))


def _devices(options: LiveOptions) -> tuple[tuple[Device, ...], str]:
    return (parse_devices(options.devices), "as given") if options.devices else default_devices()


def _num_replies(options: LiveOptions, num_cases: int) -> int:
    return 4 * options.requests * (options.noise_pairs + num_cases * options.pairs)


def _campaign(
    options: LiveOptions, devices: tuple[Device, ...], case: PlantedCase, num_pairs: int, hooks: Hooks
) -> Measured:
    timed = _requests(options, "timed", options.requests)
    runs = plan_runs(num_pairs, num_devices=len(devices), order="abba", seed=options.seed)
    settings = RunSettings(
        systems=(_system(options, "stock", case.stock), _system(options, "candidate", case.candidate)),
        devices=devices,
        requests=timed,
        warm_up=_requests(options, "warm-up", NUM_WARM_UP),
        nonces=make_nonces(timed, seed=options.seed, num_tokens=8, num_runs=len(runs)),
        concurrency=1,
        relaunch=options.relaunch,
        launch_seconds=600.0,
        request_seconds=120.0,
        limits=TelemetryLimits(foreign_load=options.max_foreign_load, stolen=options.max_stolen),
        folder=options.folder / case.name,
    )
    around = Circumstances(book=LeaseBook(), purpose="the timing selftest", wait_seconds=options.wait_seconds)
    return run_campaign(settings, runs, around, hooks)


def _judged(
    options: LiveOptions, devices: tuple[Device, ...], planted: PlantedCase, profile: NoiseProfile, hooks: Hooks
) -> LiveCase:
    measured = _campaign(options, devices, planted, options.pairs, hooks)
    timing = Timing(pairs=options.pairs, sequential=False)
    case = SpeedCase(
        timing=timing,
        strata=_strata(options),
        num_devices=len(devices),
        pairs=measured.pairs,
        noise=profile,
        looks=planned_looks(timing),
        problems=measured.problems,
    )
    check = judge_speed(case).check
    is_met = not check.verdict.is_pass if planted.required == "not PASS" else check.verdict.value == planted.required
    return LiveCase(
        name=planted.name,
        planted_gain=planted.planted_gain,
        required=planted.required,
        verdict=check.verdict,
        is_met=is_met,
        check=check,
    )


def _result(options: LiveOptions, cases: tuple[LiveCase, ...], profile: NoiseProfile, why: str) -> LiveResult:
    missed = [case for case in cases if not case.is_met]
    is_wrong = any(case.verdict is not Verdict.INCONCLUSIVE for case in missed)
    verdict = Verdict.PASS if not missed else Verdict.FAIL if is_wrong else Verdict.INCONCLUSIVE
    power = minimum_promotable_gain(PowerPlan(num_pairs=options.pairs, num_requests=options.requests), profile)
    noise = describe_noise(profile)
    return LiveResult(
        verdict=verdict,
        summary=f"{len(cases) - len(missed)} of {len(cases)} planted cases got what they must; noise "
        f"{100 * noise['rms']:.3g} % a pair, minimum promotable gain {100 * power.minimum_promotable_gain:+.2f} %",
        cases=cases,
        evidence={"noise": dict(noise), "power": asdict(power), "devices": why},
        problems=tuple(
            f"{case.name}: must get {case.required}, got {case.verdict.value}: {case.check.summary}" for case in missed
        ),
    )


def _disturbed(problems: tuple[str, ...]) -> LiveResult:
    return LiveResult(verdict=Verdict.INCONCLUSIVE, summary=problems[0], cases=(), evidence={}, problems=problems)


def _system(options: LiveOptions, name: str, given: Mapping[str, Any]) -> ArmSystem:
    return ArmSystem(name=name, engine=options.engine, model_path="", options=given)


def _strata(options: LiveOptions) -> tuple[str, ...]:
    return tuple(stratum(request) for request in _requests(options, "timed", options.requests))


def _requests(options: LiveOptions, name: str, count: int) -> tuple[Request, ...]:
    draw = random.Random(f"{options.seed}/{name}")
    return tuple(
        Request(
            id=f"{name}-{index:03d}",
            prompt_ids=tuple(draw.randrange(1, 1_000) for _ in range(PROMPT_IDS)),
            sampling=SamplingParams(max_tokens=options.tokens, ignore_eos=True),
            set="clockwork",
            cluster=f"{name}-{index:03d}",
        )
        for index in range(count)
    )
