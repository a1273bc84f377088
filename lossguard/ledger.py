"""The ledger of timed pairs: append-only, hash-chained, so that a re-submission adds to the test that it was part of.

One SQLite file. Every row holds the hash of the row before it; triggers refuse changes and deletions; reading checks
the whole chain. What a chain cannot show is that its last rows are missing: reports keep the head they ended with.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossguard.errors import IntegrityError, StorageError

GENESIS = "0" * 64
BUSY_SECONDS = 60.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    seq INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    kind TEXT NOT NULL,
    origin TEXT NOT NULL,
    created TEXT NOT NULL,
    payload TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE,
    UNIQUE (key, kind, origin)
)
"""
TRIGGERS = {
    f"no_{action.lower()}": (
        f"CREATE TRIGGER IF NOT EXISTS no_{action.lower()} BEFORE {action} ON entries "
        "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
    )
    for action in ("UPDATE", "DELETE")
}
COLUMNS = ("seq", "key", "kind", "origin", "created", "payload", "previous", "hash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row. ``origin`` names where it comes from; the same origin is never entered twice under a key."""

    seq: int
    key: str
    kind: str
    origin: str
    created: str
    payload: str
    previous: str
    hash: str

    @property
    def value(self) -> Any:
        """The payload."""
        return json.loads(self.payload)

    @property
    def expected_hash(self) -> str:
        """What its content hashes to."""
        content = [self.seq, self.key, self.kind, self.origin, self.created, self.payload, self.previous]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingKey:
    """What one sequential test is about: the same four always continue the same test."""

    candidate_sha256: str
    stock_sha256: str
    suite_sha256: str
    devices: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """The key of its rows. The order of the devices does not matter."""
        parts = [self.candidate_sha256, self.stock_sha256, self.suite_sha256, *sorted(self.devices)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Ledger:
    """The ledger in one file. Every call opens, checks the chain, and closes.

    Raises IntegrityError LG1008 for a chain that does not hold, StorageError LG1009 where it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, key: str, kind: str, origin: str, payload: Mapping[str, Any]) -> str:
        """Add a row unless this origin has one already. Returns the head of the chain."""
        text = json.dumps(payload, allow_nan=False, sort_keys=True)
        with self._open() as connection:
            rows = _checked(connection, self.path)
            head = rows[-1].hash if rows else GENESIS
            if any((row.key, row.kind, row.origin) == (key, kind, origin) for row in rows):
                return head
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            seq = rows[-1].seq + 1 if rows else 1
            row = Entry(seq=seq, key=key, kind=kind, origin=origin, created=now, payload=text, previous=head, hash="")
            values = [getattr(row, name) for name in COLUMNS[:-1]]
            places = ", ".join("?" * len(COLUMNS))
            connection.execute(f"INSERT INTO entries VALUES ({places})", [*values, row.expected_hash])  # noqa: S608
            return row.expected_hash

    def entries(self, key: str | None = None, kind: str | None = None) -> tuple[Entry, ...]:
        """Rows in order, after the whole chain was checked."""
        if not self.path.exists():
            return ()
        with self._open() as connection:
            rows = _checked(connection, self.path)
        return tuple(row for row in rows if key in (None, row.key) and kind in (None, row.kind))

    def head(self) -> str:
        """Hash of the last row."""
        rows = self.entries()
        return rows[-1].hash if rows else GENESIS

    def verify(self, known_head: str | None = None) -> None:
        """Check the chain, and that it still contains a head that an earlier report has seen."""
        hashes = {row.hash for row in self.entries()}
        if known_head is not None and known_head != GENESIS and known_head not in hashes:
            raise _tampered(self.path, f"the row {known_head[:12]}, which a report has seen, is gone")

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
            with contextlib.closing(connection):
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN IMMEDIATE")
                if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                    connection.execute(SCHEMA)
                    for statement in TRIGGERS.values():
                        connection.execute(statement)
                yield connection
                connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise _not_writable(self.path, str(error)) from error
            raise _tampered(self.path, str(error)) from error
        except OSError as error:
            raise _not_writable(self.path, error.strerror or str(error)) from error


def _checked(connection: sqlite3.Connection, path: Path) -> list[Entry]:
    """All rows, if the chain holds and nobody took the triggers away."""
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
    if not set(TRIGGERS) <= {name for (name,) in found}:
        raise _tampered(path, "the triggers that keep it append-only are missing")
    rows = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM entries ORDER BY seq")  # noqa: S608
    entries = [Entry(**dict(zip(COLUMNS, row, strict=True))) for row in rows]
    head = GENESIS
    for number, entry in enumerate(entries, 1):
        if entry.seq != number or entry.previous != head or entry.hash != entry.expected_hash:
            raise _tampered(path, f"row {number} does not follow from the row before it")
        head = entry.hash
    return entries


def _tampered(path: Path, what: str) -> IntegrityError:
    return IntegrityError(
        f"the ledger {path} was tampered with, or is damaged: {what}",
        why="a candidate that is submitted until it passes by luck is stopped by what the ledger remembers",
        fix="restore the file from a backup; if there is none, move it and the run folders that know it away, "
        "and say so beside every later verdict",
        code="LG1008",
    )


def _not_writable(path: Path, what: str) -> StorageError:
    return StorageError(
        f"the ledger {path} cannot be used: {what}",
        why="a pair that is not in the ledger would be forgotten at the next submission",
        fix="make room, or make the folder writable, and run again: what was measured is in the run folder",
        code="LG1009",
    )
