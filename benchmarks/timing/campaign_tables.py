"""What the raw runs of ``device_campaigns`` say.

    python -m benchmarks.timing.campaign_tables FOLDER [PHASE=PROFILE ...] [from=N]

Every phase is read whether or not telemetry spoke against its runs; that is told beside, and the gate's verdict obeys
it. ``from=N`` leaves out the first N pairs of every phase.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lossguard.stages.timing.judging import SpeedCase, judge_speed, planned_looks
from lossguard.stages.timing.pair_times import MeasuredPair, measured_pair, to_pair_times
from lossguard.stages.timing.run_log import RunRecord, read_run
from lossguard.timing.base import CANDIDATE, STOCK, FloatArray, NoiseProfile, PairTimes
from lossguard.timing.effects import Contrast, device_effect, interference, mean_contrast, period_effect
from lossguard.timing.noise import describe_noise, noise_profile
from lossguard.timing_plan import Timing

NUM_RUNS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPhase:
    """A phase as it was measured."""

    name: str
    facts: Mapping[str, Any]
    pairs: tuple[MeasuredPair, ...]
    problems: tuple[str, ...]

    @property
    def plan(self) -> Mapping[str, Any]:
        """As ``device_campaigns.Phase`` had it."""
        found: Mapping[str, Any] = self.facts["phase"]
        return found

    @property
    def num_devices(self) -> int:
        """1 or 2."""
        return len(self.facts["device_names"])

    @property
    def times(self) -> PairTimes:
        """All pairs."""
        return to_pair_times(
            self.pairs, ("loop",) * self.pairs[0].seconds.shape[-1], self.num_devices, metric="latency"
        )

    @property
    def estimand(self) -> str:
        """Of a batch, whose requests share their time: throughput. Else the mean over requests."""
        return "throughput" if self.plan["batch_size"] > 1 else "population"


def read_phase(folder: Path, first_pair: int = 0) -> ReadPhase:
    """Every complete pair of a phase's folder, from a first one on."""
    facts = json.loads(folder.joinpath("phase.json").read_text(encoding="utf-8"))
    pairs, problems = [], []
    files = sorted(folder.glob("runs/pair-*-run-?.jsonl"))
    for first, second in zip(files[2 * first_pair :: 2], files[2 * first_pair + 1 :: 2], strict=True):
        records = [record for record in (read_run(first), read_run(second)) if record is not None]
        problems += [text for record in records for text in record.problems]
        sound = [replace(record, problems=()) for record in records]
        pair, _ = measured_pair(sound, facts["device_names"], metric="latency", origin=folder.name)
        assert pair is not None, "a latency has no problems of its own"
        pairs.append(pair)
    return ReadPhase(name=folder.name, facts=facts, pairs=tuple(pairs), problems=tuple(dict.fromkeys(problems)))


def planted_gain(phase: ReadPhase) -> float:
    """From the kernel's known length and the plain steps of the very runs: mean of log1p(added / plain)."""
    steps = 8 + 8 + phase.plan["tokens"] - 1
    plain = phase.times.seconds[:, :, CANDIDATE]
    return float(np.expm1(np.log1p(steps * phase.facts["extra_seconds"] / plain).mean()))


def unswapped_gain(phase: ReadPhase, device: int = 0) -> float:
    """What the runs alone say in which stock was on one device."""
    logs = np.log(phase.times.seconds).mean(axis=-1)
    ratios = logs[..., STOCK] - logs[..., CANDIDATE]
    return float(np.expm1(ratios[phase.times.device[..., STOCK] == device].mean()))


def verdict_lines(phase: ReadPhase, noise: NoiseProfile) -> list[str]:
    """The rule's own verdict, and the gate's, which obeys telemetry."""
    timing = Timing(pairs=len(phase.pairs), sequential=False, estimand=phase.estimand)  # type: ignore[arg-type]
    case = SpeedCase(
        timing=timing,
        strata=phase.times.strata,
        num_devices=phase.num_devices,
        pairs=phase.pairs,
        noise=noise,
        looks=planned_looks(timing),
    )
    rule, gate = judge_speed(case), judge_speed(replace(case, problems=phase.problems))
    check = rule.check
    return [
        f"gain {check.candidate} [{check.bound}] threshold {check.limit} rule {check.verdict.value} "
        f"gate {gate.check.verdict.value}" + (f" ({phase.problems[0].split(':')[-1]})" if phase.problems else "")
    ]


def percent(value: float, digits: int = 4) -> str:
    """Of a log ratio or a fraction, as it is."""
    return f"{100 * value:+.{digits}f} %"


def contrast_text(found: Contrast) -> str:
    """Value and two-sided 95 % interval."""
    return f"{found.name} {percent(found.value)} [{percent(found.lower)}, {percent(found.upper)}]"


def noise_line(phase: ReadPhase) -> str:
    """rms about 0, upper bound, mean, and the scatter about the mean."""
    found = describe_noise(noise_profile(phase.times), phase.estimand)  # type: ignore[arg-type]
    profile = noise_profile(phase.times)
    values = np.asarray(profile.pair_means if phase.estimand == "population" else profile.pair_throughputs)
    return (
        f"{len(values)} A/A pairs ({phase.estimand}): rms {percent(found['rms'])}, 95 % upper bound "
        f"{percent(found['upper_95'])}, mean {percent(values.mean())}, scatter about it {percent(values.std(ddof=1))}; "
        f"a run's request sd {percent(found['request_sd'] or math.nan)}"
    )


def alone_line(folder: Path) -> str:
    """What the arms do to one another: log seconds beside the other minus alone, per device and both."""
    rounds: dict[tuple[int, int], RunRecord] = {}
    for path in sorted(folder.glob("runs/*.jsonl")):
        record = read_run(path)
        assert record is not None, "it was just listed"
        rounds[(record.head["pair"], record.head["run"])] = record
    numbers = sorted({pair for pair, _ in rounds})
    beside, alone = (
        np.array([[[reply.seconds for reply in rounds[(n, run)].arm(arm)] for arm in (0, 1)] for n in numbers])
        for run in range(NUM_RUNS)
    )
    parts = [interference(beside[:, arm], alone[:, arm]) for arm in (0, 1)]
    both = mean_contrast("both", rounds_mean(beside, alone))
    return "; ".join(contrast_text(part) for part in (*parts, both))


def rounds_mean(beside: FloatArray, alone: FloatArray) -> FloatArray:
    """[rounds] mean over devices and requests."""
    return np.asarray((np.log(beside) - np.log(alone)).mean(axis=(1, 2)))


def main(arguments: Sequence[str]) -> int:
    """Print one block a phase. ``PHASE=PROFILE`` names the profile that judges a phase."""
    folder = Path(arguments[0])
    profiles = dict(argument.split("=") for argument in arguments[1:])
    first_pair = int(profiles.pop("from", "0"))
    for place in sorted(path.parent for path in folder.glob("*/phase.json")):
        facts = json.loads(place.joinpath("phase.json").read_text(encoding="utf-8"))
        if facts["phase"]["kind"] == "calibrate":
            print(f"{place.name}: cycles {facts['cycles']} step seconds {facts['step_seconds']}")
            continue
        if facts["phase"]["kind"] == "alone":
            print(f"{place.name}: {alone_line(place)}")
            continue
        phase = read_phase(place, first_pair)
        print(
            f"{place.name}: {len(phase.pairs)} pairs, {contrast_text(device_effect(phase.times))}, "
            f"{contrast_text(period_effect(phase.times))}"
        )
        print(f"  stock ms by run {np.round(1e3 * phase.times.seconds[:, :, STOCK].mean(axis=-1), 2).tolist()}")
        if phase.plan["kind"] == "same":
            print(f"  {noise_line(phase)}")
        else:
            first, second = (percent(unswapped_gain(phase, device)) for device in (0, phase.num_devices - 1))
            print(
                f"  planted {percent(planted_gain(phase))} unswapped: stock on device 0 {first}, on the other {second}"
            )
        if place.name in profiles:
            against_itself = read_phase(folder / profiles[place.name], first_pair)
            kept = against_itself.plan["relaunch"] == "reset"
            profile = replace(noise_profile(against_itself.times), keeps_launches=kept)
            print("  " + "\n  ".join(verdict_lines(phase, profile)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
