"""A server that lossguard launched: started under its guardian, watched, ended with all its children."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lossguard.engines.servers import guardian, problems

START_SECONDS = 30.0  # until the guardian has started the program, not until the server is ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to run, where its output goes, and how long it may take to end by itself."""

    system: str
    words: Sequence[str]
    env: Mapping[str, str]
    log: Path
    stop_seconds: float


class ServerProcess:
    """One running server. ``stop`` may be called twice."""

    def __init__(self, launch: Launch) -> None:
        """Start it. Raises UsageError LG0228 if the program cannot be run."""
        self._launch = launch
        self._lines = b""
        self._exit_code: int | None = None
        command = [sys.executable, "-I", guardian.__file__, str(launch.log), str(launch.stop_seconds), *launch.words]
        self._guardian = subprocess.Popen(  # noqa: S603 - what the configuration says
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **launch.env},
            start_new_session=True,
        )
        self.pid = self._started()

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return self._launch.log

    @property
    def exit_code(self) -> int | None:
        """None while it runs; a signal as its negative number."""
        if self._exit_code is None:
            self._read(0.0)
        return self._exit_code

    def require_running(self) -> None:
        """Raise EngineError LG0225 with the log's tail if it has ended by itself."""
        if (code := self.exit_code) is not None:
            raise problems.crashed(self._launch.system, f"ended by itself with exit code {code}", self.log)

    def stop(self) -> None:
        """End it and everything that it has started."""
        if self._guardian.stdin is not None:
            with contextlib.suppress(OSError):
                self._guardian.stdin.close()
        try:
            self._guardian.wait(self._launch.stop_seconds + 2 * guardian.KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._guardian.kill()  # the server dies with it
            self._guardian.wait()
        self._read(0.0)
        if self._guardian.stdout is not None:
            self._guardian.stdout.close()
        if self._exit_code is None:
            self._exit_code = self._guardian.returncode

    def _started(self) -> int:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._guardian.poll() is None:
            self._read(0.05)
            for line in self._lines.decode("utf-8", "replace").splitlines():
                word, _, rest = line.partition(" ")
                if word == "started":
                    return int(rest)
                if word == "failed":
                    self.stop()
                    raise problems.cannot_launch(self._launch.system, rest)
        self._read(0.0)
        self.stop()
        raise problems.cannot_launch(self._launch.system, f"its guardian said {problems.excerpt(self._lines)!r}")

    def _read(self, seconds: float) -> None:
        """Take in what the guardian has said so far."""
        stdout = self._guardian.stdout
        if stdout is None or stdout.closed:
            return
        while select.select([stdout], [], [], seconds)[0]:
            chunk = os.read(stdout.fileno(), 4096)
            self._lines += chunk
            if not chunk:
                break
            seconds = 0.0
        for line in self._lines.decode("utf-8", "replace").splitlines():
            word, _, rest = line.partition(" ")
            if word == "exited":
                self._exit_code = int(rest)
        if self._exit_code is None and self._guardian.poll() is not None:
            self._exit_code = self._guardian.returncode
