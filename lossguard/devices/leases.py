"""Who has which device: leases on the whole host, which a crash leaves behind and the next one recognises as stale.

Two things: a *lease* says that a campaign has a device until its processes are gone, and the *pair lock* lets one
swap pair at a time run on the host, since two pairs beside each other would share memory, power and cores.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lossguard.devices.names import Device
from lossguard.devices.process_identity import ProcessIdentity, identity_of, own_identity
from lossguard.errors import MeasurementError

FOLDER_VARIABLE = "LOSSGUARD_LEASES"
POLL_SECONDS = 0.2
MODE = 0o666  # every user of the host shares the folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One device in the hands of some processes; it ends with the last of them."""

    device: Device
    processes: tuple[ProcessIdentity, ...]
    purpose: str

    @property
    def is_stale(self) -> bool:
        """Whether nobody of its holders lives: they crashed, or the machine was booted again."""
        return not any(process.is_alive for process in self.processes)


class LeaseBook:
    """The leases of this host, one file each, in a folder that all of its users share."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = lease_folder() if folder is None else folder
        _make_shared(self.folder)

    def leases(self) -> tuple[Lease, ...]:
        """Leases whose holders live; stale ones are removed."""
        with self._mutex():
            return self._live()

    @contextmanager
    def hold(
        self, devices: Sequence[Device], purpose: str, wait_seconds: float, note: Callable[[str], None]
    ) -> Iterator[HeldLease]:
        """Take all the devices at once, or wait. Raises MeasurementError LG1002 if they do not get free in time."""
        deadline, is_noted = time.monotonic() + wait_seconds, False
        while (holder := self._try_take(devices, purpose)) is not None:
            if time.monotonic() >= deadline:
                raise _busy(f"{holder.device.name} is in use: {_describe(holder)}", wait_seconds)
            if not is_noted:
                note(f"waiting for {holder.device.name}: {_describe(holder)}")
                is_noted = True
            time.sleep(POLL_SECONDS)
        held = HeldLease(self, tuple(devices), purpose)
        try:
            yield held
        finally:
            held.release()

    @contextmanager
    def exclusive_pair(self, wait_seconds: float, note: Callable[[str], None]) -> Iterator[None]:
        """Hold the host's lock while one swap pair runs. Raises MeasurementError LG1002 if it does not get free.

        The kernel gives the lock back when its holder dies.
        """
        lock = FileLock(self.folder / "pair.lock", mode=MODE)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            note("waiting: another swap pair is being timed on this host")
            try:
                lock.acquire(timeout=wait_seconds, poll_interval=POLL_SECONDS)
            except Timeout as error:
                raise _busy("another swap pair is being timed on this host", wait_seconds) from error
        try:
            yield
        finally:
            lock.release()

    def write(self, device: Device, processes: Sequence[ProcessIdentity], purpose: str) -> None:
        """Write a lease over whatever stood there; the caller has the device."""
        value = {
            "device": {"name": device.name, "kind": device.kind, "cores": list(device.cores), "uuid": device.uuid},
            "processes": [process.to_json() for process in processes],
            "purpose": purpose,
        }
        path = self._path(device)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(value), encoding="utf-8")
        temporary.replace(path)

    def remove(self, device: Device) -> None:
        """End a lease."""
        self._path(device).unlink(missing_ok=True)

    def _try_take(self, devices: Sequence[Device], purpose: str) -> Lease | None:
        """Write the leases, or return one that stands in the way."""
        with self._mutex():
            for lease in self._live():
                if any(lease.device.overlaps(device) for device in devices):
                    return lease
            for device in devices:
                self.write(device, [own_identity()], purpose)
        return None

    def _live(self) -> tuple[Lease, ...]:
        found = []
        for path in sorted(self.folder.glob("*.lease.json")):
            lease = _read(path)
            if lease is None or lease.is_stale:
                path.unlink(missing_ok=True)
            else:
                found.append(lease)
        return tuple(found)

    def _mutex(self) -> FileLock:
        return FileLock(self.folder / "book.lock", mode=MODE, timeout=30)

    def _path(self, device: Device) -> Path:
        return self.folder / f"{device.name.replace(':', '-').replace('/', '-')}.lease.json"


class HeldLease:
    """Devices that this process has. Processes that it starts on them are added, so that their life keeps the lease."""

    def __init__(self, book: LeaseBook, devices: tuple[Device, ...], purpose: str) -> None:
        self._book, self._devices, self._purpose = book, devices, purpose
        self._processes: dict[str, list[ProcessIdentity]] = {device.name: [own_identity()] for device in devices}

    def add_process(self, device: Device, pid: int) -> None:
        """A process works on the device."""
        found = identity_of(pid)
        if found is not None and device.name in self._processes:
            alive = [process for process in self._processes[device.name] if process.is_alive]
            self._processes[device.name] = [*alive, found]
            self._book.write(device, self._processes[device.name], self._purpose)

    def release(self) -> None:
        """Give the devices back."""
        for device in self._devices:
            self._book.remove(device)


def lease_folder() -> Path:
    """``$LOSSGUARD_LEASES``, else a folder in the host's temporary folder."""
    override = os.environ.get(FOLDER_VARIABLE)
    return Path(override) if override else Path(tempfile.gettempdir()) / "lossguard-leases"


def _make_shared(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
        folder.chmod(0o1777)
    except FileExistsError:
        return


def _read(path: Path) -> Lease | None:
    """A lease; None for a file that is none, which nobody can be holding."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        device = data["device"]
        return Lease(
            device=Device(name=device["name"], kind=device["kind"], cores=tuple(device["cores"]), uuid=device["uuid"]),
            processes=tuple(ProcessIdentity.from_json(process) for process in data["processes"]),
            purpose=str(data["purpose"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _describe(lease: Lease) -> str:
    pids = ", ".join(str(process.pid) for process in lease.processes if process.is_alive)
    return f"process {pids} has it for {lease.purpose}"


def _busy(found: str, waited_seconds: float) -> MeasurementError:
    return MeasurementError(
        f"{found} (waited {waited_seconds:g} s)",
        why="a time measured beside another's work is a time of both",
        fix="wait for the other process, or give other devices (--devices), or more patience (wait_seconds)",
        code="LG1002",
    )
