"""Which worker may use which device: lent before a worker starts, kept by its replacement after a crash.

``worker number modulo devices`` is wrong after a crash, since xdist gives the replacement a new number. Here the
device is part of the worker's spec, which the replacement inherits, and a ledger on the controller refuses to lend
one device twice.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from lossguard.pytest_plugin.options import Settings
from lossguard.pytest_plugin.problems import bad_devices

VISIBLE, ORDER, OURS = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LOSSGUARD_DEVICE"
LISTING_TIMEOUT_S = 20


def device_pool(config: pytest.Config) -> tuple[str, ...]:
    """The devices of this session; none where there are none and none were given."""
    return parse_devices(Settings.of(config).devices, os.environ)


def parse_devices(text: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """A list as given, or for ``auto`` what the caller can see. Raises UsageError LG0807."""
    if text == "auto":
        return _visible(environment)
    devices = tuple(part.strip() for part in text.split(","))
    if "" in devices:
        raise bad_devices(f"the list of devices {text!r} has an empty place")
    for device in devices:
        if devices.count(device) > 1:
            raise bad_devices(f"the device {device!r} is given twice")
    return devices


def _visible(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The caller's own list first: what the caller has hidden stays hidden."""
    if VISIBLE in environment:
        return tuple(part.strip() for part in environment[VISIBLE].split(",") if part.strip() not in ("", "-1"))
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        done = subprocess.run(  # noqa: S603 - the program found on the path, fixed arguments
            [program, "--query-gpu=uuid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=LISTING_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(done.stdout.split()) if done.returncode == 0 else ()


def device_environment(devices: Sequence[str]) -> dict[str, str]:
    """The variables that restrict a process to these devices; ``cpu:N`` restricts nothing but its name."""
    given = {OURS: ",".join(devices)}
    if not all(device.startswith("cpu") for device in devices):
        given |= {VISIBLE: ",".join(devices), ORDER: "PCI_BUS_ID"}
    return given


def assign(specs: Sequence[Any], devices: Sequence[str]) -> None:
    """Give every worker's spec a device of its own. Raises UsageError LG0807 if there are too few."""
    if not devices:
        return
    if len(specs) > len(devices):
        raise bad_devices(f"{len(specs)} workers and {len(devices)} devices ({', '.join(devices)})")
    for spec, device in zip(specs, devices, strict=False):
        spec.env.update(device_environment([device]))


@dataclass(slots=True)
class Ledger:
    """Who has which device now."""

    lent: dict[str, str] = field(default_factory=dict)

    def lend(self, worker: str, spec: Any) -> str | None:
        """The device of a worker that is about to start. Raises UsageError LG0807 if another has it."""
        device: str | None = spec.env.get(OURS)
        if device is None:
            return None
        for holder, held in self.lent.items():
            if held == device and holder != worker:
                raise bad_devices(f"the worker {worker} was to get {device}, which {holder} still has")
        self.lent[worker] = device
        return device

    def take_back(self, worker: str) -> None:
        """The worker is gone."""
        self.lent.pop(worker, None)


def lack(num_needed: int, given: str, environment: Mapping[str, str]) -> str:
    """What a claim that needs devices is short of in this process; empty if it has enough. Raises UsageError LG0807."""
    if num_needed == 0:
        return ""
    held = parse_devices(environment.get(OURS, given), environment)
    if len(held) >= num_needed:
        return ""
    return f"the claim needs {num_needed} devices, and this process has {len(held)} ({', '.join(held) or 'none'})"


def require_lease(promised: str | None, environment: Mapping[str, str]) -> None:
    """In a worker: what the controller says it lent is what this process was started with."""
    found = environment.get(OURS)
    if promised is not None and promised != found:
        raise bad_devices(f"this worker was lent {promised} and was started with {found}")


def restrict_this_process(devices: Sequence[str]) -> dict[str, str | None]:
    """Without workers: this process may use all of the given devices. Returns the variables as they were.

    Raises UsageError LG0807 if CUDA is in use already, since it reads the variables once.
    """
    wanted = device_environment(devices)
    if VISIBLE in wanted and is_cuda_in_use():
        raise bad_devices("CUDA was in use before its devices were assigned (in a conftest, perhaps)")
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    return before


def is_cuda_in_use() -> bool:
    """Whether torch has initialised CUDA in this process; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def restore(before: Mapping[str, str | None]) -> None:
    """Undo ``restrict_this_process``."""
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
