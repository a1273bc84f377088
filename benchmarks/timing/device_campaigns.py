"""Campaigns of the decode loop on one or two GPUs, raw: ``python -m benchmarks.timing.device_campaigns PLAN.json``.

The plan lists phases; each is a folder of run files, which ``benchmarks.timing.campaign_tables`` reads. A phase begins
only if its expected seconds are left before ``stop_after_seconds``. Kinds of phase:

- ``same``: stock against stock. ``planted``: stock carries a delay in every step that makes the candidate ``gain``
  faster: by a kernel of known length.
  With ``neighbour`` = [busy ms, idle ms] another process works on the first device meanwhile.
- ``alone``: stock beside stock, and each of both alone on its device, in turns: what the arms do to one another.
- ``calibrate``: seconds of a step without and with known numbers of clocks; later phases plant by it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lossguard.devices.leases import LeaseBook
from lossguard.devices.names import Device, parse_devices
from lossguard.devices.telemetry import TelemetryLimits
from lossguard.records import Request, SamplingParams
from lossguard.stages.timing.arms import ArmSystem
from lossguard.stages.timing.campaign import Circumstances, Hooks, run_campaign
from lossguard.stages.timing.design import RunPlan, make_nonces, plan_runs
from lossguard.stages.timing.run_log import read_run
from lossguard.stages.timing.runner import ArmPool, RunSettings, measure_run

GRAPH_LOOP = "benchmarks.timing.cuda_graph_loop:create"
PROMPT_IDS = NONCE_IDS = 8
SEED = 17
CYCLES = (0, 100_000, 400_000)
CALIBRATE = """
import json, statistics, sys
from benchmarks.timing.cuda_graph_loop import create, step_seconds
from lossguard.engines.base import EngineSpec
base, times = json.loads(sys.argv[1]), []
for cycles in json.loads(sys.argv[2]):
    loop = create(EngineSpec(name="loop", model_path="", options={**base, "extra_cycles": cycles}))
    seconds = [second for _ in range(8) for second in step_seconds(loop, base["num_positions"] - 1)[4:]]
    times.append([statistics.median(seconds), statistics.fmean(seconds)])
    loop.close()
print(json.dumps(times))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One entry of the plan. ``requests`` of a run are sent in groups of ``batch_size``."""

    name: str
    kind: str
    expected_seconds: float
    devices: tuple[str, ...]
    shape: str = "qwen3-8b"
    device_kind: str = "cuda"  # of the loop: "cpu" for trying the script out
    batch_size: int = 1
    requests: int = 4
    warm_up: int = 1
    tokens: int = 32
    pairs: int = 8
    relaunch: str = "reset"
    gain: float = 0.0
    calibration: str = ""  # name of the calibrating phase
    level: str = ""  # name of the phase of stock against stock that says how long a plain step is
    neighbour: tuple[float, float] | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Phase:
        """A phase; lists become tuples."""
        given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
        return cls(**given)

    @property
    def num_steps(self) -> int:
        """Of a request: its prompt, then its tokens; the last prompt id and the first token share a step."""
        return PROMPT_IDS + NONCE_IDS + self.tokens - 1

    @property
    def options(self) -> dict[str, Any]:
        """Of the loop."""
        positions = PROMPT_IDS + NONCE_IDS + self.tokens
        return {
            "shape": self.shape,
            "batch_size": self.batch_size,
            "num_positions": positions,
            "device": self.device_kind,
        }


def main(arguments: Sequence[str]) -> int:
    """Run the plan: path of the plan, folder of the results. Exit code 0."""
    plan = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    folder = Path(arguments[1])
    begun = time.monotonic()
    for entry in plan["phases"]:
        phase = Phase.from_json({**plan.get("defaults", {}), **entry})
        gone = time.monotonic() - begun
        if gone + phase.expected_seconds > plan["stop_after_seconds"]:
            say(f"{phase.name}: left out, {gone:.0f} s are gone")
            continue
        run_phase(phase, folder)
        say(f"{phase.name}: took {time.monotonic() - begun - gone:.1f} s, {time.monotonic() - begun:.1f} s in all")
    return 0


def run_phase(phase: Phase, folder: Path) -> None:
    """Measure one phase and write ``NAME/phase.json`` beside its runs."""
    place = folder / phase.name
    place.mkdir(parents=True, exist_ok=True)
    devices = parse_devices(phase.devices)
    facts = calibrated(phase, devices[0]) if phase.kind == "calibrate" else measured(phase, devices, folder)
    facts |= {"phase": {name: getattr(phase, name) for name in Phase.__slots__}}
    facts["device_names"] = [device.name for device in devices]
    place.joinpath("phase.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")


def calibrated(phase: Phase, device: Device) -> dict[str, Any]:
    """Median and mean seconds of a step at each of ``CYCLES``; with a neighbour, without any delay."""
    cycles = (0,) if phase.neighbour or phase.device_kind == "cpu" else CYCLES
    with disturbed(phase, device):
        done = subprocess.run(  # noqa: S603 - this interpreter, our own text
            [sys.executable, "-c", CALIBRATE, json.dumps(phase.options), json.dumps(cycles)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, **device.environment()},
        )
    times = json.loads(done.stdout.splitlines()[-1])
    say(f"{phase.name}: " + ", ".join(f"{1e6 * median:.1f} us (mean {1e6 * mean:.1f})" for median, mean in times))
    return {"cycles": list(cycles), "step_seconds": times}


def planted_cycles(calibration: Mapping[str, Any], extra_seconds: float) -> int:
    """Clocks of a kernel that lengthens a step by so many seconds, on the line through the calibration's delays.

    The line, not the origin: a kernel of no clocks takes some microseconds too.
    """
    plain, low, high = (float(times[0]) for times in calibration["step_seconds"])
    slope = (high - low) / (CYCLES[2] - CYCLES[1])
    return round(CYCLES[1] + (extra_seconds - (low - plain)) / slope)


def level_seconds(phase: Phase, folder: Path) -> float:
    """Median seconds of a plain step in the last pair of the phase that is stock against stock.

    Not the calibration's own: with a second process on the GPU, idle or not, the very same step takes another time.
    """
    record = read_run(sorted((folder / phase.level / "runs").glob("*.jsonl"))[-1])
    assert record is not None, "it was just listed"
    return statistics.median(reply.seconds for reply in record.replies) / phase.num_steps


def measured(phase: Phase, devices: tuple[Device, ...], folder: Path) -> dict[str, Any]:
    """A campaign through the gate's own pipeline, or the runs of an ``alone`` phase."""
    facts: dict[str, Any] = {}
    stock, candidate = dict(phase.options), dict(phase.options)
    if phase.kind == "planted":
        calibration = json.loads(folder.joinpath(phase.calibration, "phase.json").read_text(encoding="utf-8"))
        extra_seconds = phase.gain * level_seconds(phase, folder)
        stock["extra_cycles"] = planted_cycles(calibration, extra_seconds)
        facts |= {"extra_seconds": extra_seconds, "extra_cycles": stock["extra_cycles"]}
    settings = settings_of(phase, devices, (stock, candidate), folder / phase.name)
    around = Circumstances(book=LeaseBook(), purpose="device campaigns", wait_seconds=60.0)
    with disturbed(phase, devices[0]):
        if phase.kind == "alone":
            return facts | measured_alone(replace(settings, nonces=replace(settings.nonces, num_tokens=0)), phase.pairs)
        runs = plan_runs(phase.pairs, num_devices=len(devices), order="abba", seed=SEED)
        found = run_campaign(settings, runs, around, Hooks(note=say, progress=lambda _count: None))
    for problem in found.problems[:3]:
        say(f"{phase.name}: {problem}")
    return facts | {"problems": list(found.problems), "notes": list(found.notes), "num_sound_pairs": len(found.pairs)}


def measured_alone(settings: RunSettings, num_rounds: int) -> dict[str, Any]:
    """Each round: both arms at once (run 0), and one after the other, each on its own device (run 1)."""
    plans = {0: ((0, 1),), 1: ((0,), (1,))}
    with ExitStack() as stack:
        pool = ArmPool(settings, lambda _device, _pid: None)
        stack.callback(pool.close)
        for number in range(num_rounds):
            for run in (0, 1) if number % 2 == 0 else (1, 0):
                plan = RunPlan(pair=number, run=run, devices=(0, 1), turns=plans[run])
                measure_run(pool, plan, lambda _count: None)
    return {}


def settings_of(
    phase: Phase, devices: tuple[Device, ...], options: tuple[Mapping[str, Any], Mapping[str, Any]], folder: Path
) -> RunSettings:
    """Everything that a run of the phase needs."""
    timed = make_requests(phase, "timed", phase.requests)
    stock, candidate = (
        ArmSystem(name=name, engine=GRAPH_LOOP, model_path="", options=given)
        for name, given in zip(("stock", "candidate"), options, strict=True)
    )
    return RunSettings(
        systems=(stock, candidate),
        devices=devices,
        requests=timed,
        warm_up=make_requests(phase, "warm-up", phase.warm_up),
        nonces=make_nonces(timed, seed=SEED, num_tokens=NONCE_IDS, num_runs=2 * phase.pairs),
        concurrency=phase.batch_size,
        relaunch=phase.relaunch,
        launch_seconds=120.0,
        request_seconds=60.0,
        limits=TelemetryLimits(),
        folder=folder,
    )


def make_requests(phase: Phase, name: str, count: int) -> tuple[Request, ...]:
    """Random prompts, replies of a fixed length."""
    draw = random.Random(f"{SEED}/{name}")
    return tuple(
        Request(
            id=f"{name}-{index:03d}",
            prompt_ids=tuple(draw.randrange(1, 500) for _ in range(PROMPT_IDS)),
            sampling=SamplingParams(max_tokens=phase.tokens, ignore_eos=True),
            set="loop",
            cluster=f"{name}-{index:03d}",
        )
        for index in range(count)
    )


@contextmanager
def disturbed(phase: Phase, device: Device) -> Iterator[None]:
    """The neighbour, if the phase has one, works on the device until the block ends."""
    if phase.neighbour is None:
        yield
        return
    busy, idle = map(str, phase.neighbour)
    command = [sys.executable, "-m", "benchmarks.timing.neighbour", "--busy-ms", busy, "--idle-ms", idle]
    process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
        [*command, "--seconds", "600"], env={**os.environ, **device.environment()}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None, "the neighbour was started with a pipe"
        say(f"neighbour: {process.stdout.readline().strip()}")
        yield
    finally:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)


def say(text: str) -> None:
    """On stdout, now."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
