"""What Linux counts about cores and processes: busy and stolen time, CPU time of a process group, frequency."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lossguard.devices.process_identity import PROC, stat_fields

IDLE_FIELDS = (3, 4)  # idle, iowait
STEAL_FIELD = 7
GROUP_FIELD, CPU_TIME_FIELDS = 2, (11, 12, 13, 14)  # of stat_fields: process group; user, system, and those of children
SYSTEM_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSeconds:
    """Seconds since boot, summed over some cores."""

    busy: float
    stolen: float
    total: float


def core_seconds(cores: Sequence[int], stat: Path = PROC / "stat") -> CoreSeconds | None:
    """Counters of the cores; None where the system does not count."""
    try:
        lines = stat.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    ticks = _ticks_per_second()
    wanted = {f"cpu{core}" for core in cores}
    rows = [[int(field) / ticks for field in line.split()[1:9]] for line in lines if line.split(" ", 1)[0] in wanted]
    if len(rows) != len(wanted) or not any(map(any, rows)):
        return None
    total = sum(map(sum, rows))
    idle = sum(row[field] for row in rows for field in IDLE_FIELDS)
    return CoreSeconds(busy=total - idle, stolen=sum(row[STEAL_FIELD] for row in rows), total=total)


def group_cpu_seconds(group: int) -> float:
    """CPU time of all processes of a process group, and of their children that have ended."""
    total = 0
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            fields = stat_fields(int(entry.name))
            if fields is not None and int(fields[GROUP_FIELD]) == group:
                total += sum(int(fields[field]) for field in CPU_TIME_FIELDS)
    return total / _ticks_per_second()


def own_cpu_seconds() -> float:
    """CPU time of this process."""
    times = os.times()
    return times.user + times.system


def frequency_mhz(cores: Sequence[int]) -> float | None:
    """Mean frequency of the cores; None where the system does not tell."""
    found = [value for core in cores if (value := _scaling_mhz(core)) is not None]
    if not found:
        found = _cpu_info_mhz(cores)
    return sum(found) / len(found) if found else None


def _scaling_mhz(core: int) -> float | None:
    try:
        return int((SYSTEM_CPUS / f"cpu{core}" / "cpufreq" / "scaling_cur_freq").read_text()) / 1_000
    except (OSError, ValueError):
        return None


def _cpu_info_mhz(cores: Sequence[int]) -> list[float]:
    try:
        text = (PROC / "cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    every = [float(value) for value in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", text, re.MULTILINE)]
    return [every[core] for core in cores if core < len(every)]


def _ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK")
