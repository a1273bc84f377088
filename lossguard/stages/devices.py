"""Which accelerators the parts of a run hold, so that two that need the same one are never there together."""

from __future__ import annotations

from lossguard.config import ScorerConfig
from lossguard.engines.base import Engine

ANY = frozenset({"*"})
"""Devices that are not known: they overlap with all."""


def held_devices(engine: Engine) -> frozenset[str]:
    """Accelerators that an engine says it holds while it runs (its ``devices``); none for one that says nothing."""
    devices: frozenset[str] = getattr(engine, "devices", frozenset())
    return devices


def scorer_devices(config: ScorerConfig) -> frozenset[str]:
    """Accelerators that the scorer may take: none on the CPU, one if it is named, else any."""
    device = config.options.get("device", "auto")
    if device == "cpu":
        return frozenset()
    named = isinstance(device, str) and device.startswith("cuda:") and "device_map" not in config.options
    return frozenset({str(device).partition(":")[2]}) if named else ANY


def overlaps(one: frozenset[str], other: frozenset[str]) -> bool:
    """Whether two sets of devices share one."""
    return bool(one and other) and (one == ANY or other == ANY or bool(one & other))
