"""Counters in the Prometheus text of ``/metrics``, as telemetry: what the whole server did between two readings."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
PREFIX = "server_"
"""Columns that count for the whole server, not for one reply; ``expect`` finds them by their plain name."""


def read_counters(text: str, names: Mapping[str, str]) -> dict[str, float]:
    """Sum over all label sets of each named counter, by telemetry column. Counters that are absent are left out."""
    totals: dict[str, float] = {}
    for line in text.splitlines():
        found = LINE.match(line) if len(line) < 4_096 else None
        if found is None or found[1] not in names:
            continue
        try:
            value = float(found[2])
        except ValueError:
            continue
        if math.isfinite(value):
            totals[names[found[1]]] = totals.get(names[found[1]], 0.0) + value
    return totals


def increase(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, tuple[float, ...]]:
    """Telemetry columns with what was counted in between. A counter that fell was reset: all of it is new."""
    grown = {
        name: value - before[name] if value >= before[name] else value for name, value in now.items() if name in before
    }
    return {PREFIX + name: (value,) for name, value in grown.items()}
