"""Runs one server and never lets it outlive lossguard. A program of its own, standard library only.

    python -I guardian.py LOG GRACE_SECONDS COMMAND ...

It writes ``started PID`` and later ``exited CODE`` to its standard output, and ends the server with all that descends
from it as soon as its standard input ends: when lossguard closes it, and when lossguard dies, however it dies. The
server gets the parent-death signal, so that it does not outlive a guardian that is killed either.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.05
KILL_SECONDS = 10.0
CANNOT_START = 127
IGNORED = (signal.SIGINT, signal.SIGTERM)  # Ctrl-C is for lossguard, which then closes our input


def main(arguments: list[str]) -> int:
    """Start, watch, end. Returns the server's exit code (a signal as its negative number)."""
    log_path, grace, command = Path(arguments[0]), float(arguments[1]), arguments[2:]
    prctl = _prctl()
    if prctl is not None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    try:
        with log_path.open("ab") as log:
            server = subprocess.Popen(  # noqa: S603 - what the configuration says
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_in_the_server(prctl),
            )
    except OSError as error:
        _say(f"failed {error}")
        return CANNOT_START
    _say(f"started {server.pid}")
    code = _watch(server)
    end_all(server.pid, grace)
    code = server.wait() if code is None else code
    with contextlib.suppress(OSError):  # nobody listens any more
        _say(f"exited {code}")
    return code


def _watch(server: subprocess.Popen[bytes]) -> int | None:
    """Until the server ends (its code) or our input does (None)."""
    while True:
        ready, _, _ = select.select([0], [], [], POLL_SECONDS)
        if ready and not os.read(0, 4096):
            return None
        if (code := server.poll()) is not None:
            return code


def end_all(server_pid: int, grace_seconds: float) -> None:
    """SIGTERM to the server's group, and SIGKILL to whatever of its family is left after the grace."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server_pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while descendants(os.getpid()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    deadline = time.monotonic() + KILL_SECONDS
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server_pid, signal.SIGKILL)  # where there is no /proc to read


def descendants(root: int) -> list[int]:
    """Living processes below ``root``. Orphans come to us, their subreaper; ended ones (zombies) do not count."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(entry.parent.name)] = int(fields[1])
    found: set[int] = set()
    level = {root}
    while level := {pid for pid, parent in parents.items() if parent in level and pid not in found}:
        found |= level
    return sorted(found)


def _in_the_server(prctl: Callable[[int, int], int] | None) -> Callable[[], None]:
    guardian = os.getpid()

    def prepare() -> None:
        for number in IGNORED:  # what is ignored stays ignored across exec
            signal.signal(number, signal.SIG_DFL)
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guardian:  # we died between fork and prctl
            os._exit(CANNOT_START)

    return prepare


def _prctl() -> Callable[[int, int], int] | None:
    """The system call of Linux; None elsewhere, where the end of standard input is the only guard."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None, use_errno=True)
    call: Callable[[int, int], int] = library.prctl
    return call


def _say(line: str) -> None:
    os.write(1, (line + "\n").encode("utf-8", "backslashreplace"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) & 0xFF)
