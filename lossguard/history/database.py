"""The database: a row per claim of every run that was read. A run is known by the hash of its report."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from lossguard.errors import IntegrityError, StorageError, UsageError
from lossguard.report.reading import REPORT, read_report, report_path
from lossguard.report.verdict_text import claim_headline
from lossguard.run_folder import reading, storage

APPLICATION_ID = 0x10551095
"""In the file's header: another program's database is not written to."""
VERSION = 1
_TABLE = """
CREATE TABLE claims (
    report_sha256 TEXT NOT NULL, run TEXT NOT NULL, started TEXT NOT NULL, claim TEXT NOT NULL,
    candidate TEXT NOT NULL, baseline TEXT NOT NULL, kind TEXT NOT NULL, verdict TEXT NOT NULL,
    headline TEXT NOT NULL, rules_sha256 TEXT NOT NULL, prompts_sha256 TEXT NOT NULL,
    candidate_rate REAL, stock_rate REAL, difference_upper_95 REAL, margin REAL,
    gain REAL, gain_lower_bound REAL, gain_upper_bound REAL,
    PRIMARY KEY (report_sha256, claim)
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """One claim of one run. Rates, margin and gains are fractions; None where they were not measured."""

    report_sha256: str
    run: str
    started: str  # RFC 3339, in UTC
    claim: str
    candidate: str
    baseline: str
    kind: str  # lossless or speed
    verdict: str
    headline: str
    rules_sha256: str
    prompts_sha256: str
    candidate_rate: float | None
    stock_rate: float | None
    difference_upper_95: float | None
    margin: float | None
    gain: float | None
    gain_lower_bound: float | None
    gain_upper_bound: float | None

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)


_NAMES = tuple(item.name for item in fields(ClaimRow))
_SELECT = f"SELECT {', '.join(_NAMES)} FROM claims"  # noqa: S608
_INSERT = f"INSERT OR IGNORE INTO claims VALUES ({', '.join('?' for _ in _NAMES)})"  # noqa: S608


@dataclass(frozen=True, slots=True)
class History:
    """An open database."""

    connection: sqlite3.Connection

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Open ``path``, made if it is not there. Raises UsageError LG1804 for a file that is no such database."""
        with storage(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            connection = sqlite3.connect(path)
        except sqlite3.Error as error:
            raise _cannot_write(path, error) from error
        try:
            _prepare(connection, path)
            with connection:
                yield cls(connection)
        except sqlite3.Error as error:
            raise _cannot_write(path, error) from error
        finally:
            connection.close()

    def add(self, places: Sequence[Path]) -> list[str]:
        """Read every report of ``places`` that is not known yet. Returns what could not be read, a line each.

        A place that is named and is no report is UsageError LG1801; one inside a folder of runs is only told.
        """
        problems = []
        for place in places:
            inside = _runs_inside(place)
            for run in [place] if inside is None else inside:
                try:
                    self._add(run)
                except (UsageError, IntegrityError) as error:
                    if inside is None:
                        raise
                    problems.append(f"left out: {error.found} ({error.code})")
        return problems

    def _add(self, place: Path) -> None:
        path = report_path(place)
        report = read_report(place)
        with reading(path):
            rows = rows_of(report, hashlib.sha256(path.read_bytes()).hexdigest())
        self.connection.executemany(_INSERT, [tuple(asdict(row).values()) for row in rows])

    def rows(self, candidate: str | None = None) -> list[ClaimRow]:
        """Every claim, oldest first; of one candidate, if it is named."""
        order = " ORDER BY started, run, claim"
        if candidate is None:
            found = self.connection.execute(_SELECT + order)
        else:
            found = self.connection.execute(f"{_SELECT} WHERE candidate = ?{order}", (candidate,))
        return [ClaimRow(**dict(zip(_NAMES, values, strict=True))) for values in found]


def rows_of(report: Mapping[str, Any], sha256: str) -> list[ClaimRow]:
    """A report's claims. Raises KeyError, TypeError for one of another form."""
    return [
        ClaimRow(
            report_sha256=sha256,
            run=report["run"]["id"],
            started=report["run"]["started"],
            claim=claim["id"],
            candidate=claim["candidate"],
            baseline=claim["baseline"],
            kind=claim.get("kind", "lossless"),
            verdict=claim["verdict"],
            headline=claim_headline(claim),
            rules_sha256=report["integrity"]["rules_sha256"],
            prompts_sha256=report["prompts"]["sha256"],
            gain=claim.get("gain"),
            gain_lower_bound=claim.get("gain_lower_bound"),
            gain_upper_bound=claim.get("gain_upper_bound"),
            **_rates(claim),
        )
        for claim in report["claims"]
    ]


def _rates(claim: Mapping[str, Any]) -> dict[str, float | None]:
    evidence: Mapping[str, Any] = next((check["evidence"] for check in claim["checks"] if check["check"] == "rate"), {})
    return {
        "candidate_rate": evidence.get("candidate_rate"),
        "stock_rate": evidence.get("stock_rate"),
        "difference_upper_95": evidence.get("upper_95"),
        "margin": evidence.get("margin"),
    }


def _runs_inside(place: Path) -> list[Path] | None:
    """The finished runs of a folder of runs; None for a run folder, finished or not, and for a file."""
    if not place.is_dir() or any((place / name).is_file() for name in (REPORT, "plan.json")):
        return None
    return sorted(path.parent for path in place.glob(f"run-*/{REPORT}"))


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    try:
        found = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    except sqlite3.DatabaseError as error:
        raise _foreign(path, str(error)) from error
    if is_empty and not found and not version:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute(_TABLE)
        connection.commit()
    elif (found, version) != (APPLICATION_ID, VERSION):
        raise _foreign(path, f"application {found:#x}, version {version}")


def _foreign(path: Path, what: str) -> UsageError:
    return UsageError(
        f"{path} is no history of this lossguard: {what}",
        why="writing into another program's file would damage it",
        fix="give another --database; history reads all runs that are still there into a new one",
        code="LG1804",
    )


def _cannot_write(path: Path, error: sqlite3.Error) -> StorageError:
    return StorageError(
        f"the history {path} cannot be used: {error}",
        why="runs that are not in it are missing from the trend; reports themselves are intact",
        fix="make room, or give another --database, and run history again",
        code="LG1805",
    )
