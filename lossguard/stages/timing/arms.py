"""The client's side of an arm: start its process, wait for it, exchange messages, and end the whole process group."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossguard.devices.names import Device
from lossguard.errors import EngineError
from lossguard.stages.timing.channel import Channel, ChannelClosed, Message, packed

CLOSE_SECONDS = 10.0
POLL_SECONDS = 0.005
LOG_TAIL_CHARACTERS = 600
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSystem:
    """A system that another process can start: names only, no callable."""

    name: str
    engine: str
    model_path: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmPlace:
    """Where an arm runs and writes."""

    device: Device
    cores: tuple[int, ...]  # pinned to; empty: not pinned
    folder: Path  # log, and the arm's own compile caches
    launch_seconds: float  # at most


class Arm:
    """A running arm. Every failure is EngineError LG1004, which names the arm and the end of its log."""

    def __init__(self, system: ArmSystem, place: ArmPlace) -> None:
        self.system, self.place = system, place
        place.folder.mkdir(parents=True, exist_ok=True)
        self._log = place.folder / "log.txt"
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        command = [sys.executable, "-m", "lossguard.stages.timing.arm_process", str(theirs.fileno())]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(place),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        theirs.close()
        self.hello: Mapping[str, Any] = {}
        self._is_broken = False

    @property
    def pid(self) -> int:
        """Of the process, which leads its group."""
        return self._process.pid

    def begin(self) -> None:
        """Hand over the task, which starts the launch."""
        task = {
            "name": self.system.name,
            "engine": self.system.engine,
            "model_path": self.system.model_path,
            "options": dict(self.system.options),
            "cores": list(self.place.cores),
            "sys_path": [place for place in sys.path if place],
        }
        assert self._process.stdin is not None, "the arm was started with a pipe"
        try:
            with self._process.stdin as pipe:
                pipe.write(json.dumps(task).encode())
        except OSError as error:
            raise self.failure(f"ended before it was told what to do: {error}") from error

    def await_hello(self) -> Mapping[str, Any]:
        """Wait until the engine is there."""
        self.hello = self.receive("hello", self.place.launch_seconds).body
        return self.hello

    def send(self, message: Message) -> None:
        """Send, or raise."""
        self.send_packed(packed(message))

    def send_packed(self, data: bytes) -> None:
        """Send what was packed before, or raise."""
        try:
            self.channel.send_packed(data)
        except ChannelClosed as error:
            raise self.gone() from error

    def receive(self, kind: str, timeout_seconds: float) -> Message:
        """The next message, which must be of this kind."""
        try:
            message = self.channel.receive(timeout_seconds)
        except ChannelClosed as error:
            raise self.gone() from error
        except TimeoutError as error:
            raise self.failure(f"did not answer within {timeout_seconds:g} s") from error
        return self.checked(message, kind)

    def checked(self, message: Message, kind: str) -> Message:
        """The same message, or what the arm reported in its stead."""
        if message.kind == "error":
            raise self.failure(f"failed with {message.body['code']}: {message.body['found']}")
        if message.kind != kind:
            raise self.failure(f"answered {message.kind!r} where {kind!r} was due")
        return message

    def gone(self) -> EngineError:
        """The error for a channel that closed."""
        code = self._exit_code(CLOSE_SECONDS)
        return self.failure("closed its channel" if code is None else f"ended with exit code {code}")

    def failure(self, what: str) -> EngineError:
        """EngineError LG1004."""
        self._is_broken = True
        tail = self._log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_CHARACTERS:].strip()
        shown = f"; its log ends: {' / '.join(tail.splitlines()[-3:])}" if tail else ""
        return EngineError(
            f"the arm of {self.system.name!r} on {self.place.device.name} {what}{shown}",
            why="a reply that failed has no time, and leaving it out would reward failing",
            fix=f"repair the system (log: {self._log}), then continue with --resume: finished runs are kept",
            code="LG1004",
        )

    def close(self) -> None:
        """Ask it to end, unless it has failed, then end its process group for certain."""
        if not self._is_broken:
            with contextlib.suppress(ChannelClosed):
                self.channel.send(Message(kind="close"))
            self._exit_code(CLOSE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the process group now; may be called twice. The group outlives its leader if an engine left servers."""
        self.channel.close()
        if self._process.returncode is None:  # not reaped yet, so the number still stands for this group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def _exit_code(self, timeout_seconds: float) -> int | None:
        """Wait for the end of the process without reaping it; None if it still runs. Minus the signal, if killed."""
        deadline = time.monotonic() + timeout_seconds
        while self._process.returncode is None:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            if time.monotonic() >= deadline:
                return None
            time.sleep(POLL_SECONDS)
        return self._process.returncode


def _environment(place: ArmPlace) -> dict[str, str]:
    """The caller's variables, the device's, and compile caches that no other arm sees."""
    caches = {name: str(place.folder.absolute() / "caches" / name.lower()) for name in CACHES}
    ours = str(Path(__file__).resolve().parents[3])
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    path = os.pathsep.join([*inherited, *([] if ours in inherited else [ours])])
    return {**os.environ, **place.device.environment(), **caches, "PYTHONPATH": path}
