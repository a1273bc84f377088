"""One GPU through NVML (package nvidia-ml-py), or through ``nvidia-smi`` where that package is missing."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from lossguard.devices.process_identity import PROC, stat_fields
from lossguard.devices.telemetry import Sampler

THROTTLE_BITS = {0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
POWER_CAP_BIT = 0x4  # common at full load, and no fault: told, not judged
QUERY = (
    "clocks.sm,clocks.mem,power.draw,temperature.gpu,"
    "clocks_event_reasons.hw_slowdown,clocks_event_reasons.sw_thermal_slowdown,"
    "clocks_event_reasons.hw_thermal_slowdown,clocks_event_reasons.hw_power_brake_slowdown,"
    "clocks_event_reasons.sw_power_cap"
)
QUERY_REASONS = ("hardware slowdown", "software thermal", "hardware thermal", "power brake")
TIMEOUT_SECONDS = 20
GROUP_FIELD = 2


def gpu_sampler(uuid: str, groups: frozenset[int]) -> tuple[Sampler, str]:
    """The best sampler there is for a GPU, and why it is this one. ``groups``: process groups of our arms."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        program = shutil.which("nvidia-smi")
        if program is None:
            return NoSampler("neither nvidia-ml-py nor nvidia-smi is here, so no telemetry was taken"), "none"
        return SmiSampler(program, uuid), "nvidia-smi, since the package nvidia-ml-py is not installed"
    try:
        return NvmlSampler(nvml, uuid, groups), "NVML"
    except nvml.NVMLError as error:
        return NoSampler(f"NVML failed: {error}"), "none"


class NoSampler:
    """Says why there is no telemetry."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def sample(self) -> Mapping[str, Any]:
        """The reason."""
        return {"unavailable": self._reason}

    def close(self) -> None:
        """Nothing is held."""


class NvmlSampler:
    """Clocks, power, temperature, event reasons and processes of one GPU."""

    def __init__(self, nvml: Any, uuid: str, groups: frozenset[int]) -> None:
        self._nvml, self._groups = nvml, groups
        nvml.nvmlInit()
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)

    def sample(self) -> Mapping[str, Any]:
        """One reading; what this GPU does not offer is left out."""
        nvml, handle = self._nvml, self._handle
        reasons = self._read(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
        pids = self._read(lambda: [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)])
        power = self._read(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return {
            "sm_mhz": self._read(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "memory_mhz": self._read(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            "power_watts": None if power is None else power / 1_000,
            "temperature_celsius": self._read(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "throttle": [name for bit, name in THROTTLE_BITS.items() if reasons & bit],
            "power_cap": bool(reasons & POWER_CAP_BIT),
            "foreign_pids": [pid for pid in pids or [] if is_foreign(pid, self._groups)],
        }

    def close(self) -> None:
        """Leave NVML."""
        self._nvml.nvmlShutdown()

    def _read(self, query: Any) -> Any:
        try:
            return query()
        except self._nvml.NVMLError:
            return None


class SmiSampler:
    """The same without processes, by one call of nvidia-smi a reading."""

    def __init__(self, program: str, uuid: str) -> None:
        self._command = [program, "-i", uuid, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]

    def sample(self) -> Mapping[str, Any]:
        """One reading."""
        try:
            done = subprocess.run(  # noqa: S603 - the program found on the path, fixed arguments
                self._command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            return {"unavailable": f"nvidia-smi failed: {type(error).__name__}"}
        return parse_smi(done.stdout)

    def close(self) -> None:
        """Nothing is held."""


def parse_smi(line: str) -> Mapping[str, Any]:
    """A line of nvidia-smi's answer to ``QUERY``."""
    parts = [part.strip() for part in line.strip().split(",")]
    if len(parts) != len(QUERY.split(",")):
        return {"unavailable": f"nvidia-smi answered {line.strip()[:80]!r}"}
    keys = ("sm_mhz", "memory_mhz", "power_watts", "temperature_celsius")
    active = [part == "Active" for part in parts[4:]]
    return {
        **{key: _number(part) for key, part in zip(keys, parts, strict=False)},
        "throttle": [name for name, is_active in zip(QUERY_REASONS, active, strict=False) if is_active],
        "power_cap": active[4],
    }


def is_foreign(pid: int, groups: frozenset[int]) -> bool:
    """Whether a process on the GPU is not ours. One of another pid namespace cannot be told, and is not counted."""
    if not (PROC / str(pid)).exists():
        return False
    fields = stat_fields(pid)
    return fields is not None and int(fields[GROUP_FIELD]) not in groups


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
