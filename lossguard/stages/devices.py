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


def is_running(engine: Engine) -> bool:
    """Whether an engine holds its devices now; one that does not tell is taken to."""
    return bool(getattr(engine, "is_running", True))


def tells_devices(engine: Engine) -> bool:
    """Whether an engine says what it holds, be it nothing: only processes of their own do."""
    return isinstance(getattr(engine, "devices", None), frozenset)


def scorer_devices(config: ScorerConfig) -> frozenset[str]:
    """Accelerators that the scorer may take: none on the CPU, one if it is named, else any.

    A server that scores takes its ``devices``; one behind a url is not this run's to place.
    """
    if "url" in config.options or "launch" in config.options:
        return frozenset(listed_devices(config.options.get("devices", 0)))
    device = config.options.get("device", "auto")
    if device == "cpu":
        return frozenset()
    named = isinstance(device, str) and device.startswith("cuda:") and "device_map" not in config.options
    return frozenset({str(device).partition(":")[2]}) if named else ANY


def listed_devices(value: object) -> tuple[str, ...]:
    """Of a server's ``devices``: a number of them or a list; its own options refuse anything else."""
    if isinstance(value, int):
        return tuple(str(index) for index in range(value))
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def overlaps(one: frozenset[str], other: frozenset[str]) -> bool:
    """Whether two sets of devices share one."""
    return bool(one and other) and (one == ANY or other == ANY or bool(one & other))
