"""One stock against one candidate, ready to be measured: devices, arms probed, suite, fingerprints, keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lossguard.config import SystemConfig
from lossguard.devices.leases import LeaseBook
from lossguard.devices.names import Device, default_devices, parse_devices
from lossguard.devices.telemetry import TelemetryLimits
from lossguard.errors import UsageError
from lossguard.fingerprint import Fingerprint, collect_fingerprint
from lossguard.ledger import TimingKey
from lossguard.stages.timing.arms import ArmSystem
from lossguard.stages.timing.campaign import Circumstances, Hooks, probe
from lossguard.stages.timing.design import NUM_RUNS, Nonces, make_nonces
from lossguard.stages.timing.requests import Suite, conditions
from lossguard.stages.timing.runner import Probe, RunSettings
from lossguard.stages.workspace import Workspace
from lossguard.timing_plan import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Everything that is fixed before a pair is measured."""

    timing: Timing
    settings: RunSettings
    around: Circumstances
    suite: Suite
    probed: Probe
    stock: Fingerprint
    candidate: Fingerprint
    reasons: tuple[str, ...]

    @property
    def num_devices(self) -> int:
        """1 or 2."""
        return len(self.settings.devices)

    @property
    def key(self) -> TimingKey:
        """What the ledger knows this test by."""
        return TimingKey(
            candidate_sha256=self.candidate.sha256,
            stock_sha256=self.stock.sha256,
            suite_sha256=self.suite.identity(self.timing),
            devices=tuple(device.name for device in self.settings.devices),
        )

    @property
    def conditions(self) -> Mapping[str, Any]:
        """What the noise profile must have been measured under."""
        return {
            **conditions(self.timing),
            "suite_sha256": self.suite.identity(self.timing),
            "design": "two-device" if self.num_devices == 2 else "one-device",
        }

    def num_replies(self, num_runs: int) -> int:
        """That the client gets in so many runs, warm-up aside."""
        return 2 * num_runs * self.timing.requests

    def cost_seconds(self, num_pairs: int) -> float:
        """At most: from the probe's launch and its cold warm-up block."""
        turns = NUM_RUNS * num_pairs * (1 if self.num_devices == 2 else 2)
        served = (self.timing.warm_up + self.timing.requests) * self.probed.request_seconds
        launch = self.probed.launch_seconds if self.timing.relaunch == "process" else 0.0
        return turns * (launch + served)

    def against_itself(self, folder: Path) -> RunSettings:
        """The settings of the A/A campaign: stock in both arms."""
        stock = self.settings.systems[0]
        nonces = replace(self.settings.nonces, seed=self.settings.nonces.seed + 1)
        return replace(self.settings, systems=(stock, stock), nonces=nonces, folder=folder)


def choose_devices(timing: Timing) -> tuple[tuple[Device, ...], str]:
    """The plan's devices, else those that this machine suggests, and why. Raises UsageError LG1001."""
    if timing.devices:
        devices = parse_devices(timing.devices)
        design = "swapped between the runs of a pair" if len(devices) == 2 else "taken in turns: the weaker design"
        return devices, f"devices as given, {design}"
    return default_devices()


def open_session(workspace: Workspace, timing: Timing, candidate: SystemConfig, suite: Suite, hooks: Hooks) -> Session:
    """Launch both arms once and fix everything. Raises UsageError LG1001, LG1010; EngineError LG1004, LG1005."""
    devices, why = choose_devices(timing)
    stock = workspace.plan.stock
    systems = (arm_system(workspace, stock), arm_system(workspace, candidate))
    seed = workspace.plan.effective_seed
    settings = RunSettings(
        systems=systems,
        devices=devices,
        requests=suite.timed,
        warm_up=suite.warm_up,
        nonces=Nonces(seed=seed, num_tokens=0, pool=()),
        concurrency=timing.concurrency,
        relaunch=timing.relaunch,
        launch_seconds=timing.launch_seconds,
        request_seconds=timing.request_seconds,
        limits=TelemetryLimits(foreign_load=timing.max_foreign_load, stolen=timing.max_stolen),
        folder=workspace.folder.path / candidate.name,
        arrivals_per_second=timing.arrivals_per_second,
        trace_seed=seed,
    )
    around = Circumstances(
        book=LeaseBook(),
        purpose=f"timing {candidate.name} against {stock.name}",
        wait_seconds=timing.wait_seconds,
        metric=timing.metric,
    )
    probed = probe(settings, around, hooks)
    supported = frozenset.intersection(*(frozenset(hello["sampling"]) for hello in probed.hellos.values()))
    adapted, length = suite.adapted(supported)
    nonces = _nonces(workspace, timing, adapted, candidate)
    return Session(
        timing=timing,
        settings=replace(settings, requests=adapted.timed, warm_up=adapted.warm_up, nonces=nonces),
        around=around,
        suite=adapted,
        probed=probed,
        stock=_fingerprint(workspace, stock, probed, "stock", devices),
        candidate=_fingerprint(workspace, candidate, probed, "candidate", devices),
        reasons=(why, length),
    )


def arm_system(workspace: Workspace, system: SystemConfig) -> ArmSystem:
    """The system by names that another process can follow. Raises UsageError LG1010 for one of this process."""
    if workspace.plan.handle(system.name) is not None:
        raise UsageError(
            f"the system {system.name!r} exists only in this process, so it cannot be launched as an arm of its own",
            why="an arm is a process that is pinned to its device and launched anew for every run",
            fix='name it in the configuration: engine = "callable", target = "module:function", or "module:factory"',
            code="LG1010",
        )
    return ArmSystem(
        name=system.name,
        engine=system.engine,
        model_path=str(workspace.model_path(system)),
        options=dict(system.options),
    )


def _nonces(workspace: Workspace, timing: Timing, suite: Suite, candidate: SystemConfig) -> Nonces:
    """Seeded by run folder and candidate, so that no submission repeats the prompts of another."""
    name = f"{workspace.plan.effective_seed}/{workspace.folder.path.absolute()}/{candidate.name}"
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6])
    return make_nonces(
        (*suite.timed, *suite.warm_up),
        seed=seed,
        num_tokens=timing.nonce_tokens,
        num_runs=NUM_RUNS * (timing.pairs + timing.noise_pairs),
    )


def _fingerprint(
    workspace: Workspace, system: SystemConfig, probed: Probe, arm: str, devices: tuple[Device, ...]
) -> Fingerprint:
    """As the gate's fingerprints, with the devices and the hash of the engine's sources."""
    told = probed.hellos[arm]["fingerprint"]
    engine = dict(told["engine"])
    if "host" in engine:  # may add to this machine's facts, never replace them: the arm runs here
        engine["reported_host"] = engine.pop("host")
    found = collect_fingerprint(
        target=workspace.target_path,
        engine=engine,
        served=workspace.model_path(system) if system.model else None,
    )
    identity = {
        **found.identity,
        "engine.factory": json.dumps(told["factory"], sort_keys=True),
        "engine.options": json.dumps(dict(system.options), sort_keys=True, default=str),
        "device.timed": "+".join(sorted(device.name for device in devices)),
    }
    return Fingerprint(identity=identity, measured=found.measured)
