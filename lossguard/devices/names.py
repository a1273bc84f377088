"""Names of devices: ``cuda:UUID`` (or ``cuda:0``, which is resolved to its UUID) and ``cpu:CORES`` (``cpu:0-3``)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lossguard.errors import UsageError

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
LISTING_TIMEOUT_SECONDS = 20
CORES = re.compile(r"\d+(-\d+)?(\+\d+(-\d+)?)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One place to run a system. ``cores`` are the CPUs that its process is pinned to; empty: not pinned."""

    name: str  # canonical: the same device never has two names
    kind: Literal["cpu", "cuda"]
    cores: tuple[int, ...] = ()
    uuid: str = ""

    def overlaps(self, other: Device) -> bool:
        """Whether both would use the same hardware."""
        if self.kind != other.kind:
            return False
        return self.uuid == other.uuid if self.kind == "cuda" else bool(set(self.cores) & set(other.cores))

    def environment(self) -> dict[str, str]:
        """Variables that restrict a process to this device; numeric libraries get one thread per core."""
        if self.kind == "cuda":
            return {VISIBLE: self.uuid, ORDER: "PCI_BUS_ID"}
        threads = str(len(self.cores))
        return {VISIBLE: "", "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as the driver lists it."""

    index: int
    uuid: str
    model: str


def parse_devices(names: Sequence[str], *, gpus: Callable[[], Sequence[Gpu]] | None = None) -> tuple[Device, ...]:
    """One or two devices of the same kind. Raises UsageError LG1001 for a name that does not fit this machine."""
    listing = list_gpus if gpus is None else gpus
    if not 1 <= len(names) <= 2:
        raise bad_device(f"{len(names)} devices are given: {', '.join(names)}", "give one device, or two to swap")
    devices = tuple(_parse(name.strip(), listing) for name in names)
    if len(devices) == 2:
        _require_pair(devices[0], devices[1])
    return devices


def default_devices(
    environment: Mapping[str, str] | None = None, *, gpus: Callable[[], Sequence[Gpu]] | None = None
) -> tuple[tuple[Device, ...], str]:
    """The devices of a campaign for which none were named, and why these.

    Two visible GPUs of one model, else one GPU, else the halves of the cores that this process may use.
    """
    variables = os.environ if environment is None else environment
    visible = _visible((list_gpus if gpus is None else gpus)(), variables)
    twins = [gpu for gpu in visible if gpu.model == visible[0].model] if visible else []
    if len(twins) >= 2:
        return tuple(_cuda(gpu.uuid) for gpu in twins[:2]), f"the first two visible GPUs of model {twins[0].model}"
    if visible:
        return (_cuda(visible[0].uuid),), "one GPU is visible, so the systems take turns on it: the weaker design"
    cores = available_cores()
    if len(cores) < 2:
        return (_cpu(cores),), "one core, so the systems take turns on it: the weaker design"
    half = len(cores) // 2
    return (_cpu(cores[:half]), _cpu(cores[half : 2 * half])), "no GPU is visible: two halves of the cores"


def available_cores() -> tuple[int, ...]:
    """CPUs that this process may use, sorted."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def list_gpus() -> tuple[Gpu, ...]:
    """What ``nvidia-smi`` lists; none where there is no such program or it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = [program, "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(  # noqa: S603 - the program found on the path, fixed arguments
            query, capture_output=True, text=True, timeout=LISTING_TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = [[part.strip() for part in line.split(",", 2)] for line in done.stdout.splitlines() if line.strip()]
    return tuple(Gpu(index=int(index), uuid=uuid, model=model) for index, uuid, model in rows)


def core_list(cores: Sequence[int]) -> str:
    """``(0, 1, 2, 5)`` as ``0-2+5``."""
    runs: list[list[int]] = []
    for core in sorted(set(cores)):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return "+".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def bad_device(found: str, fix: str) -> UsageError:
    """UsageError LG1001."""
    return UsageError(
        found,
        why="a time belongs to the device that it was measured on, so devices are named exactly",
        fix=fix,
        code="LG1001",
    )


def _parse(name: str, gpus: Callable[[], Sequence[Gpu]]) -> Device:
    kind, _, place = name.partition(":")
    if kind == "cpu" and CORES.fullmatch(place):
        return _cpu(_cores(name, place))
    if kind == "cuda" and place:
        return _cuda(_uuid(name, place, gpus()))
    raise bad_device(f"{name!r} names no device", "write cpu:0, cpu:0-3, cpu:0+2, cuda:0 or cuda:GPU-UUID")


def _cores(name: str, place: str) -> tuple[int, ...]:
    cores: set[int] = set()
    for part in place.split("+"):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    missing = sorted(cores - set(available_cores()))
    if missing or not cores:
        raise bad_device(
            f"{name!r}: this process may not use the cores {missing}",
            f"choose among {core_list(available_cores())}",
        )
    return tuple(sorted(cores))


def _uuid(name: str, place: str, gpus: Sequence[Gpu]) -> str:
    if place.startswith("MIG-"):
        return place  # an instance has a UUID of its own, which is not listed as a GPU
    for gpu in gpus:
        if place in (str(gpu.index), gpu.uuid):
            return gpu.uuid
    known = ", ".join(f"cuda:{gpu.index} = cuda:{gpu.uuid}" for gpu in gpus) or "no GPU"
    raise bad_device(f"{name!r} is not among the GPUs of this machine", f"nvidia-smi lists {known}")


def _require_pair(first: Device, second: Device) -> None:
    if first.kind != second.kind:
        raise bad_device(f"{first.name} and {second.name} are of different kinds", "give two devices of one kind")
    if first.overlaps(second):
        raise bad_device(f"{first.name} and {second.name} share hardware", "give disjoint devices")
    if first.kind == "cpu" and len(first.cores) != len(second.cores):
        raise bad_device(f"{first.name} and {second.name} differ in their number of cores", "give as many to each")


def _visible(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    if VISIBLE not in environment:
        return list(gpus)
    wanted = [part.strip() for part in environment[VISIBLE].split(",")]
    return [gpu for place in wanted for gpu in gpus if place in (str(gpu.index), gpu.uuid)]


def _cpu(cores: Sequence[int]) -> Device:
    return Device(name=f"cpu:{core_list(cores)}", kind="cpu", cores=tuple(cores))


def _cuda(uuid: str) -> Device:
    return Device(name=f"cuda:{uuid}", kind="cuda", uuid=uuid)
