"""Reading a report back: from a run folder or a file, and only of a schema that is known here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lossguard.errors import UsageError
from lossguard.report.json_report import SCHEMA_ID

REPORT = "report.json"
MAJOR = "1."


def report_path(place: Path) -> Path:
    """The JSON report of a run folder, or the file itself."""
    return place / REPORT if place.is_dir() else place


def read_report(place: Path) -> dict[str, Any]:
    """The report at ``place``, a run folder or a JSON file.

    Raises UsageError LG1801 if there is none, LG1802 for another schema.
    """
    path = report_path(place)
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _no_report(place, f"{path} cannot be read: {error}") from error
    if not isinstance(report, dict) or "schema" not in report:
        raise _no_report(place, f"{path} is no lossguard report: it names no schema")
    if report["schema"] != SCHEMA_ID or not str(report.get("schema_version", "")).startswith(MAJOR):
        raise UsageError(
            f"{path} has the schema {report['schema']!r}, version {report.get('schema_version')!r}",
            why="a report of another schema may say other things by the same names",
            fix=f"give a report of a run (schema {SCHEMA_ID}), or use the lossguard that wrote this one",
            code="LG1802",
        )
    return report


def _no_report(place: Path, found: str) -> UsageError:
    return UsageError(
        found,
        why="every form of a report is made from the JSON that the run wrote",
        fix=f"give a run folder or a JSON report instead of {place}; an unfinished run goes on with --resume",
        code="LG1801",
    )
