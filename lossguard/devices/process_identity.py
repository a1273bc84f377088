"""Which process a number stands for: pids are used again, so start time and boot belong to the name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc")
BOOT_ID = PROC / "sys" / "kernel" / "random" / "boot_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process of one boot. ``start_ticks`` is field 22 of ``/proc/PID/stat``."""

    pid: int
    start_ticks: int
    boot_id: str

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProcessIdentity:
        """Inverse of ``to_json``. Raises KeyError, TypeError or ValueError."""
        return cls(pid=int(data["pid"]), start_ticks=int(data["start_ticks"]), boot_id=str(data["boot_id"]))

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        return identity_of(self.pid) == self


def identity_of(pid: int) -> ProcessIdentity | None:
    """The process that has this number now; None if there is none, or only what its parent has not yet reaped."""
    fields = stat_fields(pid)
    if fields is None or fields[0] == "Z":
        return None
    return ProcessIdentity(pid=pid, start_ticks=int(fields[19]), boot_id=boot_id())


def own_identity() -> ProcessIdentity:
    """This process."""
    found = identity_of(os.getpid())
    assert found is not None, "this process is not in /proc"
    return found


def stat_fields(pid: int) -> list[str] | None:
    """Fields 3 (state) onwards of ``/proc/PID/stat``; None for a process that is gone.

    The name before them is in parentheses and may hold anything, so it is cut off at the last one.
    """
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def boot_id() -> str:
    """Changes with every boot."""
    try:
        return BOOT_ID.read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"
