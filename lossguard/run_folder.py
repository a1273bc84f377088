"""The run folder: every line that was paid for is on disk before the next is asked for.

Outputs are appended one line per finished request and fsynced; documents are written to a temporary name and
renamed. A line cut short by a crash is dropped on reading, and its request served again.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lossguard.atomic_write import replace_file
from lossguard.errors import IntegrityError, StorageError, UsageError
from lossguard.records import AuditedEvent, Request, ServedOutput, require_finite

RUN_NAME = re.compile(r"run-(\d{4,})")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths and atomic writes of one run."""

    path: Path

    @classmethod
    def create(cls, root: Path) -> RunFolder:
        """Make ``root/run-NNNN`` with the next free number, and a .gitignore for the root."""
        with storage(root):
            root.mkdir(parents=True, exist_ok=True)
            ignore = root / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n", encoding="utf-8")
        while True:
            path = root / f"run-{_next_number(root):04d}"
            try:
                with storage(path):
                    path.mkdir()
            except FileExistsError:  # another process took the number
                continue
            return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run. Raises UsageError LG0605 if it is none."""
        if not (path / "plan.json").is_file():
            raise UsageError(
                f"{path} is not a run folder: it has no plan.json",
                why="resume, rejudge and recheck work on what an earlier run has written",
                fix="give the folder that an earlier run printed, such as .lossguard/run-0007",
                code="LG0605",
            )
        return cls(path)

    def system(self, name: str) -> Path:
        """The folder of one system, made if it is not there."""
        folder = self.path / name
        with storage(folder):
            folder.mkdir(exist_ok=True)
        return folder

    def write_json(self, name: str, value: Mapping[str, Any]) -> Path:
        """Write a document atomically. NaN and infinity are refused."""
        require_finite(value)
        return write_atomically(self.path / name, json.dumps(value, indent=2, allow_nan=False))

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a document. Raises IntegrityError LG0606 if it is missing or damaged."""
        return read_json(self.path / name)

    def write_requests(self, name: str, requests: Iterable[Request]) -> None:
        """Write requests, one line each."""
        lines = (json.dumps(request.to_json()) for request in requests)
        write_atomically(self.path / name, "".join(f"{line}\n" for line in lines))

    def read_requests(self, name: str) -> tuple[Request, ...]:
        """Read what ``write_requests`` wrote; damage is IntegrityError LG0606."""
        path = self.path / name
        try:
            lines = path.read_text(encoding="utf-8").split("\n")[:-1]
            return tuple(Request.from_json(json.loads(line)) for line in lines)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise damaged(path, str(error)) from error

    def log(self, message: str) -> None:
        """Append a line to log.txt."""
        with storage(self.path), (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(message + "\n")


def _next_number(root: Path) -> int:
    numbers = [int(found[1]) for entry in root.iterdir() if (found := RUN_NAME.fullmatch(entry.name))]
    return max(numbers, default=0) + 1


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turn an OSError while writing at ``path`` into StorageError LG0607 (FileExistsError passes)."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or str(error))
        raise StorageError(
            f"cannot write {path}: {reason}",
            why="a result that is not on disk cannot be resumed or judged again; what was written before is intact",
            fix="make room or another folder (--folder), then continue with --resume",
            code="LG0607",
        ) from error


def damaged(path: Path, what: str) -> IntegrityError:
    """IntegrityError LG0606 about a file of a run folder."""
    return IntegrityError(
        f"{path} is damaged: {what}",
        why="judging what is left of it would give a verdict about something else",
        fix="delete that file and continue with --resume: what it held is made again",
        code="LG0606",
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises IntegrityError LG0606."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged(path, str(error)) from error
    if not isinstance(value, dict):
        raise damaged(path, f"it holds a {type(value).__name__}, not an object")
    return value


def write_atomically(path: Path, text: str) -> Path:
    """Write a document as a whole. Raises StorageError LG0607; what stood there before is then intact."""
    with storage(path):
        return replace_file(path, text.encode())


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one JSON line and fsync; after a failed write the file ends at its last whole line."""
    line = (json.dumps(value, allow_nan=False) + "\n").encode()
    with storage(path), path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            written = file.write(line)
            if written != len(line):  # a nearly full disk writes part of the line first
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def read_outputs(path: Path, *, repair: bool = True) -> tuple[dict[str, ServedOutput], list[str]]:
    """Outputs by request id, and notes about what was dropped.

    A last line that was cut short is ignored and, with ``repair``, removed from the file (its request is served
    again). Damage anywhere else, and a request that appears twice, is IntegrityError LG0606.
    """
    if not path.exists():
        return {}, []
    raw = path.read_bytes()
    whole, _, rest = raw.rpartition(b"\n")
    notes = []
    if rest and repair:
        notes.append(f"{path.name}: the last line was cut short ({len(rest)} bytes) and its request is served again")
        with storage(path), path.open("r+b") as file:
            file.truncate(len(raw) - len(rest))
    outputs: dict[str, ServedOutput] = {}
    for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
        output = _parse_output(path, number, line)
        if output.request_id in outputs:
            raise damaged(path, f"line {number} answers request {output.request_id} a second time")
        outputs[output.request_id] = output
    return outputs, notes


def _parse_output(path: Path, number: int, line: bytes) -> ServedOutput:
    try:
        return ServedOutput.from_json(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged(path, f"line {number} is not a served output: {error}") from error


def read_audit(path: Path) -> tuple[AuditedEvent, ...]:
    """Audited events; a last line cut short is ignored, since its event is audited again."""
    if not path.exists():
        return ()
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        return tuple(AuditedEvent.from_json(json.loads(line)) for line in lines)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged(path, str(error)) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what a document of the wrong form raises while it is read into IntegrityError LG0606."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error


@contextmanager
def only_process(folder: RunFolder) -> Iterator[None]:
    """Hold the run folder's lock. Raises UsageError LG0611 if another process has it."""
    lock = FileLock(str(folder.path / ".lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise UsageError(
            f"another process is working in {folder.path}",
            why="two writers would mix their replies",
            fix="wait for it, or start a run of your own without --resume",
            code="LG0611",
        ) from error
    try:
        yield
    finally:
        lock.release()
