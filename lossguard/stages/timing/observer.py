"""Telemetry of a run at 1 Hz, in a thread of the client; its judgement never looks at times of replies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lossguard.devices.names import Device
from lossguard.devices.nvidia import gpu_sampler
from lossguard.devices.telemetry import CpuSampler, Sampler, TelemetryLimits, describe_samples, judge_samples

INTERVAL_SECONDS = 1.0


@dataclass
class Observer:
    """Collects samples over the turns of one run."""

    devices: Sequence[Device]
    limits: TelemetryLimits
    samples: list[dict[str, Any]] = field(default_factory=list)
    _problems: list[str] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)

    @contextmanager
    def watching(
        self, groups: Mapping[str, frozenset[int]], keep: Callable[[Mapping[str, Any]], None]
    ) -> Iterator[None]:
        """Sample the devices named in ``groups`` until the block ends; ``keep`` is called afterwards, off the clock."""
        watched = [device for device in self.devices if device.name in groups]
        samplers = {device.name: self._sampler(device, groups[device.name]) for device in watched}
        taken: list[dict[str, Any]] = []
        stop = threading.Event()
        thread = threading.Thread(target=_sample_until, args=(samplers, taken, stop), name="telemetry", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            for sampler in samplers.values():
                sampler.close()
            for sample in taken:
                keep(sample)
        self._judge(watched, taken)

    def problems(self) -> list[str]:
        """Why the run is not to be used."""
        return list(self._problems)

    def notes(self) -> list[str]:
        """What telemetry could not see, and where it comes from."""
        return list(dict.fromkeys(self._notes))

    def _sampler(self, device: Device, groups: frozenset[int]) -> Sampler:
        if device.kind == "cpu":
            return CpuSampler(device, groups)
        sampler, source = gpu_sampler(device.uuid, groups)
        self._notes.append(f"telemetry of {device.name}: {source}")
        return sampler

    def _judge(self, watched: Sequence[Device], taken: Sequence[dict[str, Any]]) -> None:
        for device in watched:
            own = [sample for sample in taken if sample["device"] == device.name]
            self._problems += judge_samples(device, own, self.limits)
            self._notes += describe_samples(device, own)
        self.samples += taken


def _sample_until(samplers: Mapping[str, Sampler], taken: list[dict[str, Any]], stop: threading.Event) -> None:
    """One sample at once, one every second, one at the end."""
    _sample(samplers, taken)
    while not stop.wait(INTERVAL_SECONDS):
        _sample(samplers, taken)
    _sample(samplers, taken)


def _sample(samplers: Mapping[str, Sampler], taken: list[dict[str, Any]]) -> None:
    for name, sampler in samplers.items():
        taken.append({"device": name, "at_ns": time.monotonic_ns(), **sampler.sample()})
