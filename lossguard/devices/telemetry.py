"""What devices report while they work, and when that makes a run unusable.

A sampler reads one device; a run's samples are judged without looking at its times, so that nobody can drop a run
because it was slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lossguard.devices.cpu_counters import core_seconds, frequency_mhz, group_cpu_seconds, own_cpu_seconds
from lossguard.devices.names import Device

SHORTEST_SECONDS = 0.5  # of counters that go by hundredths of a second

GO_WITHOUT = "max_foreign_load = 1.0 goes without"


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryLimits:
    """Above these a run counts as shared or throttled. Fractions of the device's time."""

    foreign_load: float = 0.2
    stolen: float = 0.02
    throttled_samples: float = 0.0

    @property
    def is_load_ignored(self) -> bool:
        """A whole device's time is allowed to others, in so many words: sharing is not judged."""
        return self.foreign_load >= 1.0


class Sampler(Protocol):
    """Reads one device."""

    def sample(self) -> Mapping[str, Any]:
        """JSON values; counters only grow."""

    def close(self) -> None:
        """Give back what it holds."""


@dataclass(frozen=True, slots=True)
class CpuSampler:
    """Counters of the cores that an arm is pinned to. ``groups`` are the process groups of our arms."""

    device: Device
    groups: frozenset[int]

    def sample(self) -> Mapping[str, Any]:
        """Cumulative seconds, and the frequency now."""
        cores = core_seconds(self.device.cores)
        values: dict[str, Any] = {
            "arm_seconds": sum(map(group_cpu_seconds, self.groups)),
            "client_seconds": own_cpu_seconds(),
            "frequency_mhz": frequency_mhz(self.device.cores),
        }
        if cores is not None:
            values |= {"busy_seconds": cores.busy, "stolen_seconds": cores.stolen, "total_seconds": cores.total}
        return values

    def close(self) -> None:
        """Nothing is held."""


def judge_samples(device: Device, samples: Sequence[Mapping[str, Any]], limits: TelemetryLimits) -> list[str]:
    """Why the run on this device is not to be used; empty if nothing speaks against it."""
    if device.kind == "cpu":
        return _judge_cpu(device, samples, limits)
    return _judge_gpu(device, samples, limits)


def describe_samples(device: Device, samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """What telemetry could not see."""
    if not samples:
        return [f"{device.name}: no telemetry was taken"]
    if "unavailable" in samples[0]:
        return [f"{device.name}: {samples[0]['unavailable']}"]
    if device.kind == "cpu" and _growth(samples, "total_seconds") is None:
        return [f"{device.name}: too short a run, or no counters, to see steal and foreign load"]
    return []


def _judge_cpu(device: Device, samples: Sequence[Mapping[str, Any]], limits: TelemetryLimits) -> list[str]:
    total, busy = _growth(samples, "total_seconds"), _growth(samples, "busy_seconds")
    if total is None or busy is None or total <= 0:
        return [] if limits.is_load_ignored else [_unseen(device, samples)]
    own = (_growth(samples, "arm_seconds") or 0.0) + (_growth(samples, "client_seconds") or 0.0)
    stolen = (_growth(samples, "stolen_seconds") or 0.0) / total
    foreign = max(0.0, busy - own) / total - stolen
    problems = []
    if foreign > limits.foreign_load:
        problems.append(f"{device.name} was shared: other processes took {100 * foreign:.0f} % of it")
    if stolen > limits.stolen:
        problems.append(f"{device.name} was shared: the hypervisor stole {100 * stolen:.1f} % of it")
    return problems


def _unseen(device: Device, samples: Sequence[Mapping[str, Any]]) -> str:
    """Why sharing cannot be told. What was not seen is not taken for quiet."""
    if len(samples) >= 2 and "total_seconds" in samples[0]:
        return f"{device.name}: runs too short to see sharing; more requests or tokens ({GO_WITHOUT})"
    return f"{device.name}: this system has no counters to see sharing; {GO_WITHOUT}"


def _judge_gpu(device: Device, samples: Sequence[Mapping[str, Any]], limits: TelemetryLimits) -> list[str]:
    seen = [sample for sample in samples if "unavailable" not in sample]
    if not seen:
        reason = samples[0]["unavailable"] if samples else "no telemetry was taken"
        return [] if limits.is_load_ignored else [f"{device.name} could not be watched: {reason}; {GO_WITHOUT}"]
    problems = []
    throttled = [sample["throttle"] for sample in seen if sample.get("throttle")]
    if len(throttled) > limits.throttled_samples * len(seen):
        reasons = ", ".join(sorted({reason for reasons in throttled for reason in reasons}))
        problems.append(f"{device.name} was throttled in {len(throttled)} of {len(seen)} samples: {reasons}")
    foreign = sorted({pid for sample in seen for pid in sample.get("foreign_pids", ())})
    if foreign:
        problems.append(f"{device.name} was shared with the processes {', '.join(map(str, foreign))}")
    return problems


def _growth(samples: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """How far a counter went from the first sample to the last; None if it is missing or the run was too short."""
    values = [sample[key] for sample in samples if key in sample]
    if len(values) < 2 or samples[-1]["at_ns"] - samples[0]["at_ns"] < SHORTEST_SECONDS * 1e9:
        return None
    return float(values[-1] - values[0])
