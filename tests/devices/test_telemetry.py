"""What telemetry makes of readings: throttled, shared, fine, or nothing to see."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lossguard.devices.cpu_counters import core_seconds, frequency_mhz, group_cpu_seconds
from lossguard.devices.names import Device
from lossguard.devices.nvidia import NvmlSampler, gpu_sampler, is_foreign, parse_smi
from lossguard.devices.telemetry import CpuSampler, TelemetryLimits, describe_samples, judge_samples

CORE = Device(name="cpu:0", kind="cpu", cores=(0,))
GPU = Device(name="cuda:GPU-0", kind="cuda", uuid="GPU-0")
LIMITS = TelemetryLimits()


def cpu_samples(**growth: float) -> list[dict[str, Any]]:
    """Two samples ten seconds apart."""
    keys = ("busy_seconds", "total_seconds", "stolen_seconds", "arm_seconds", "client_seconds")
    grown = {"total_seconds": 10.0, **growth}
    first = {"at_ns": 0, "device": "cpu:0", **dict.fromkeys(keys, 100.0)}
    return [first, {"at_ns": 10**10, "device": "cpu:0", **{key: 100.0 + grown.get(key, 0.0) for key in keys}}]


@pytest.mark.parametrize(
    ("growth", "word"),
    [
        ({"busy_seconds": 9.0, "arm_seconds": 8.8}, ""),
        ({"busy_seconds": 9.0, "arm_seconds": 7.4}, ""),
        ({"busy_seconds": 9.0, "arm_seconds": 5.0}, "other processes took 40 %"),
        ({"busy_seconds": 9.0, "arm_seconds": 8.0, "stolen_seconds": 0.5}, "stole 5.0 %"),
        ({"busy_seconds": 3.0, "arm_seconds": 3.2}, ""),
    ],
)
def test_foreign_load_and_steal(growth: dict[str, float], word: str) -> None:
    problems = judge_samples(CORE, cpu_samples(**growth), LIMITS)
    assert len(problems) == bool(word)
    assert word in "".join(problems)


def test_what_cannot_be_seen_is_told() -> None:
    short = [{"at_ns": 0, "total_seconds": 1.0}, {"at_ns": 10**8, "total_seconds": 1.1}]
    assert judge_samples(CORE, short, LIMITS) == [
        "cpu:0: runs too short to see sharing; more requests or tokens (max_foreign_load = 1.0 goes without)"
    ]
    assert "no counters" in judge_samples(CORE, [{"at_ns": 0}, {"at_ns": 10**10}], LIMITS)[0]
    assert "no driver" in judge_samples(GPU, [{"unavailable": "no driver"}], LIMITS)[0]
    ignored = TelemetryLimits(foreign_load=1.0)
    assert judge_samples(CORE, short, ignored) == judge_samples(GPU, [{"unavailable": "x"}], ignored) == []
    assert "too short" in describe_samples(CORE, short)[0]
    assert "no telemetry" in describe_samples(CORE, [])[0]
    assert describe_samples(GPU, [{"unavailable": "no driver"}]) == ["cuda:GPU-0: no driver"]


@pytest.mark.parametrize(
    ("sample", "word"),
    [
        ({"throttle": [], "foreign_pids": []}, ""),
        ({"throttle": [], "power_cap": True}, ""),
        ({"throttle": ["hardware thermal"]}, "throttled in 1 of 2 samples: hardware thermal"),
        ({"throttle": [], "foreign_pids": [7]}, "shared with the processes 7"),
    ],
)
def test_a_gpu_that_is_throttled_or_shared(sample: dict[str, Any], word: str) -> None:
    problems = judge_samples(GPU, [{"throttle": []}, sample], LIMITS)
    assert len(problems) == bool(word)
    assert word in "".join(problems)


def test_counters_of_this_machine_grow() -> None:
    core = min(os.sched_getaffinity(0))
    before, own = core_seconds([core]), group_cpu_seconds(os.getpgrp())
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        pass
    after = core_seconds([core])
    assert before is not None
    assert after is not None
    assert after.total > before.total
    assert group_cpu_seconds(os.getpgrp()) >= own
    mhz = frequency_mhz([core])
    assert mhz is None or mhz > 100


def test_counters_that_are_not_there_are_none(tmp_path: Path) -> None:
    assert core_seconds([0], tmp_path / "none") is None
    (tmp_path / "stat").write_text("cpu  0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n")
    assert core_seconds([0], tmp_path / "stat") is None
    (tmp_path / "stat").write_text("cpu0 100 0 100 600 100 0 0 100 0 0\n")
    found = core_seconds([0], tmp_path / "stat")
    assert found is not None
    ticks = os.sysconf("SC_CLK_TCK")
    assert (found.busy, found.stolen, found.total) == (300 / ticks, 100 / ticks, 1_000 / ticks)


def test_the_cpu_sampler_reads_everything() -> None:
    sampler = CpuSampler(CORE, frozenset({os.getpgrp()}))
    assert {"arm_seconds", "client_seconds", "frequency_mhz"} <= set(sampler.sample())
    sampler.close()


def test_a_line_of_nvidia_smi() -> None:
    found = parse_smi("1980, 2619, 345.12, 41, Not Active, Active, Not Active, Not Active, Active\n")
    assert found["sm_mhz"] == 1980
    assert found["throttle"] == ["software thermal"]
    assert found["power_cap"] is True
    assert "unavailable" in parse_smi("No devices were found")


class FakeNvml(SimpleNamespace):
    """The calls that the sampler makes."""

    class NVMLError(Exception):
        """NVML's own."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 0, 1, 0

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetCurrentClocksEventReasons(self, _handle: str) -> int:
        return 0x4 | 0x40

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=1), SimpleNamespace(pid=2**22 + 5)]

    def nvmlDeviceGetPowerUsage(self, _handle: str) -> int:
        return 345_000

    def nvmlDeviceGetClockInfo(self, _handle: str, kind: int) -> int:
        return 1_980 + kind

    def nvmlDeviceGetTemperature(self, _handle: str, _kind: int) -> int:
        raise self.NVMLError


def test_the_nvml_sampler_leaves_out_what_is_not_offered() -> None:
    sampler = NvmlSampler(FakeNvml(), "GPU-0", frozenset({os.getpgrp()}))
    found = sampler.sample()
    assert found["temperature_celsius"] is None
    assert found["throttle"] == ["hardware thermal"]
    assert found["power_watts"] == 345.0
    assert found["foreign_pids"] == [1]
    sampler.close()


def test_processes_of_another_namespace_are_not_counted() -> None:
    assert not is_foreign(2**22 + 5, frozenset())
    assert is_foreign(os.getpid(), frozenset())


def test_without_a_driver_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    monkeypatch.setattr("lossguard.devices.nvidia.shutil.which", lambda _name: None)
    sampler, source = gpu_sampler("GPU-0", frozenset())
    assert source == "none"
    assert "unavailable" in sampler.sample()
