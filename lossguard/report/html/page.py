"""From the JSON report of a run to its page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossguard.report.html.sections import Section, sections_of
from lossguard.report.html.templates import render_template
from lossguard.report.plots.canvas import WITHOUT, is_available
from lossguard.report.verdict_text import by_severity, outcome_line, recheck_command
from lossguard.run_folder import reading, write_atomically

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything that the template prints."""

    title: str
    verdict: str
    line: str
    sections: tuple[Section, ...]
    without_pictures: str
    commands: tuple[tuple[str, str], ...]  # (what it does, command)
    facts: tuple[tuple[str, str], ...]
    fingerprints: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    reasons: tuple[str, ...]


def write_html(path: Path, report: Json, source: Path) -> Path:
    """Render ``report`` into one file; ``source`` is where it was read from, for errors.

    Raises IntegrityError LG0606 for a report of the wrong form, StorageError LG0607.
    """
    return write_atomically(path, render_html(report, source))


def render_html(report: Json, source: Path) -> str:
    """The page as text; the same report gives the same bytes. Raises as ``write_html``."""
    with reading(source):
        page = _page(report)
    return render_template("page.html.jinja", page)


def _page(report: Json) -> Page:
    run = report["run"]
    return Page(
        title=f"lossguard {run['id']}: {report['outcome']['verdict']}",
        verdict=report["outcome"]["verdict"],
        line=outcome_line(report["outcome"]),
        sections=sections_of(report),
        without_pictures="" if is_available() else WITHOUT,
        commands=_commands(report),
        facts=_facts(report),
        fingerprints=_fingerprints(report["fingerprint"]),
        reasons=(*report["thresholds"].get("reasons", ()), *report["prompts"].get("reasons", ())),
    )


def _commands(report: Json) -> tuple[tuple[str, str], ...]:
    run = report["run"]
    folder = run.get("folder", "RUN")
    rows = [("the same run again", shlex.join(run["command"]))] if run["command"] else []
    rows.append(("the rules again, on what this run kept", f"lossguard rejudge {folder}"))
    for claim in by_severity(report["claims"]):
        if claim["verdict"] != "PASS" and claim["examples"]:
            rows.append((f"the first place of {claim['id']}", recheck_command(claim, run, claim["examples"][0])))
    return tuple(rows)


def _facts(report: Json) -> tuple[tuple[str, str], ...]:
    run, budget, limits, integrity = report["run"], report["run"]["budget"], report["thresholds"], report["integrity"]
    rows = [
        ("run", f"{run['id']}, started {run['started']}"),
        ("made by", f"lossguard {report['producer']['version']}"),
        ("seed", str(run["seed"])),
        ("temperature", str(run["temperature"])),
        (
            "budget",
            f"{budget['name']}: {budget['num_requests']} requests x {budget['max_tokens']} tokens, "
            f"{budget['num_calibration']} calibration prompts",
        ),
        ("prompts", f"{', '.join(report['prompts']['sets'])}; sha256 {report['prompts']['sha256']}"),
        ("rules", f"sha256 {integrity['rules_sha256']}"),
    ]
    if limits:
        rows.append(
            (
                "thresholds, from stock alone",
                f"delta q {limits['q_nats']:.3g}, event {limits['event_nats']:.3g}, near-tie budget "
                f"{limits['near_tie_budget_nats']:.2g} nats; margin {100 * limits['margin']:.2g} points",
            )
        )
    if run.get("baseline"):
        rows.append(("stock is a record", "; ".join(f"{key} {value}" for key, value in run["baseline"].items())))
    return tuple(rows)


def _fingerprints(fingerprint: Json) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    systems = {"stock": fingerprint["stock"], **fingerprint["candidates"], "scorer": fingerprint["scorer"]}
    return tuple((name, tuple(_flat(facts))) for name, facts in systems.items() if facts)


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """``(engine.version, 0.5)`` rows of nested facts."""
    if isinstance(value, Mapping):
        return [row for key, item in value.items() for row in _flat(item, f"{name}.{key}" if name else str(key))]
    return [(name, str(value))]
