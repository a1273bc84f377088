"""What a run measured, line by line on disk as it comes: a head, a line per reply, samples, and an end.

A run without its end line is incomplete. It is kept under another name and measured again, since its processes are
gone; nothing is ever overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lossguard.run_folder import append_line, damaged, storage

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One reply. ``sent_ns`` and ``received_ns`` are the client's monotonic clock, and the only evidence.

    ``first_ns`` and ``last_ns`` are arrivals as the arm's process saw them, on the same clock if nobody tampered.
    ``due_ns``: when the arrival trace wanted it sent, for open loops.
    """

    arm: int
    index: int
    request_id: str
    sent_ns: int
    received_ns: int
    num_tokens: int
    ids_sha256: str
    finish_reason: str
    first_ns: int | None = None
    last_ns: int | None = None
    due_ns: int | None = None

    @property
    def seconds(self) -> float:
        """From sent (or due) to the last token received."""
        begun = self.sent_ns if self.due_ns is None else self.due_ns
        return (self.received_ns - begun) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run as read back. ``problems``: why its times are not to be used although it is complete."""

    head: Mapping[str, Any]
    replies: tuple[Reply, ...]
    samples: tuple[Mapping[str, Any], ...]
    end: Mapping[str, Any] | None
    problems: tuple[str, ...] = field(default=())

    @property
    def is_complete(self) -> bool:
        """Whether it was measured to its end."""
        return self.end is not None

    def arm(self, arm: int) -> list[Reply]:
        """The arm's replies in request order."""
        return sorted((reply for reply in self.replies if reply.arm == arm), key=lambda reply: reply.index)


class RunWriter:
    """Appends to the file of one run."""

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        self.path = path
        set_aside(path)
        with storage(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._append({"kind": "head", "schema_version": SCHEMA_VERSION, **head})

    def replies(self, replies: Sequence[Reply]) -> None:
        """Keep replies that have just come."""
        for reply in replies:
            self._append({"kind": "reply", **asdict(reply)})

    def sample(self, sample: Mapping[str, Any]) -> None:
        """Keep one line of telemetry."""
        self._append({"kind": "sample", **sample})

    def end(self, facts: Mapping[str, Any]) -> None:
        """The run is complete."""
        self._append({"kind": "end", **facts})

    def _append(self, value: Mapping[str, Any]) -> None:
        append_line(self.path, value)


def set_aside(path: Path) -> None:
    """Give an earlier attempt a name of its own: ``NAME.attempt-1`` and so on."""
    if not path.exists():
        return
    number = 1
    while (aside := path.with_name(f"{path.name}.attempt-{number}")).exists():
        number += 1
    with storage(aside):
        path.rename(aside)


def read_run(path: Path) -> RunRecord | None:
    """The run of a file; None if there is none. A last line cut short by a crash is not there.

    Raises IntegrityError LG0606 for any other damage.
    """
    if not path.exists():
        return None
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        entries = [json.loads(line) for line in lines]
        return _record(entries)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged(path, str(error)) from error


def _record(entries: Sequence[dict[str, Any]]) -> RunRecord:
    by_kind: dict[str, list[dict[str, Any]]] = {"head": [], "reply": [], "sample": [], "end": []}
    for entry in entries:
        by_kind[entry.pop("kind")].append(entry)
    end = by_kind["end"][0] if by_kind["end"] else None
    return RunRecord(
        head=by_kind["head"][0] if by_kind["head"] else {},
        replies=tuple(Reply(**entry) for entry in by_kind["reply"]),
        samples=tuple(by_kind["sample"]),
        end=end,
        problems=tuple(end["problems"]) if end else (),
    )
