"""Whether the clocks can be trusted: a wall clock that was set, or a machine that slept, during a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

JUMP_SECONDS = 0.25
DRIFT_RATIO = 1e-3  # what a slewed clock may gain or lose


def _boot_ns() -> int:
    """Nanoseconds since boot, sleep included where the system tells."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns()


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Where the times come from; tests give others."""

    monotonic_ns: Callable[[], int] = time.monotonic_ns
    wall_ns: Callable[[], int] = time.time_ns
    boot_ns: Callable[[], int] = _boot_ns


REAL_CLOCKS = Clocks()


@dataclass
class ClockWatch:
    """Compares how far three clocks went since it was made."""

    clocks: Clocks = field(default_factory=lambda: REAL_CLOCKS)
    _begun: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self) -> None:
        self._begun = self._now()

    def problems(self) -> list[str]:
        """Jumps; none if all clocks went on together."""
        elapsed, wall, boot = self._elapsed_seconds()
        allowed = JUMP_SECONDS + DRIFT_RATIO * elapsed
        found = []
        if abs(wall - elapsed) > allowed:
            found.append(f"clock jump: the wall clock went {wall:+.3f} s while {elapsed:.3f} s passed")
        if abs(boot - elapsed) > allowed:
            found.append(f"the machine slept: {boot:.3f} s since boot while {elapsed:.3f} s passed")
        return found

    def facts(self) -> Mapping[str, Any]:
        """For the run's record."""
        elapsed, wall, boot = self._elapsed_seconds()
        return {"monotonic_seconds": elapsed, "wall_seconds": wall, "boot_seconds": boot}

    def _now(self) -> tuple[int, int, int]:
        return self.clocks.monotonic_ns(), self.clocks.wall_ns(), self.clocks.boot_ns()

    def _elapsed_seconds(self) -> tuple[float, float, float]:
        now = self._now()
        return (
            (now[0] - self._begun[0]) / 1e9,
            (now[1] - self._begun[1]) / 1e9,
            (now[2] - self._begun[2]) / 1e9,
        )
