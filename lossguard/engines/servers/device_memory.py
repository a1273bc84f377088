"""Accelerator memory: what a server that ended still holds must be free before the next one starts."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence

from lossguard.engines.servers.problems import memory_held

QUERY = ("--query-gpu=index,memory.used", "--format=csv,noheader,nounits")
SLACK_MIB = 512
WAIT_SECONDS = 120.0
POLL_SECONDS = 0.5
VISIBLE = "CUDA_VISIBLE_DEVICES"


def used_mib(devices: Sequence[str]) -> dict[str, int]:
    """Used memory of each device in MiB; empty without devices or without nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if not devices or program is None:
        return {}
    done = subprocess.run(  # noqa: S603 - a fixed query to the program found on the path
        [program, *QUERY], capture_output=True, text=True, timeout=60, check=False
    )
    rows = [line.split(",") for line in done.stdout.splitlines() if line.count(",") == 1]
    found = {index.strip(): used.strip() for index, used in rows}
    return {device: int(found[device]) for device in devices if found.get(device, "").isdigit()}


def wait_for_memory(system: str, before: Mapping[str, int], seconds: float = WAIT_SECONDS) -> None:
    """Wait until every device uses no more than before the launch, up to 512 MiB. Raises EngineError LG0227."""
    if not before:
        return
    deadline = time.monotonic() + seconds
    while True:
        now = used_mib(tuple(before))
        held = {device: used for device, used in now.items() if used > before[device] + SLACK_MIB}
        if not held:
            return
        if time.monotonic() >= deadline:
            listing = ", ".join(f"device {name}: {used} MiB, {before[name]} before" for name, used in held.items())
            raise memory_held(system, f"{listing}, after {seconds:g} s")
        time.sleep(POLL_SECONDS)


def device_environment(devices: Sequence[str], configured: Mapping[str, str]) -> dict[str, str]:
    """The configured environment with the devices made visible, unless it says so itself."""
    return {**({VISIBLE: ",".join(devices)} if devices else {}), **configured}
