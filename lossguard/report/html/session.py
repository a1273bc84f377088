"""A pytest session as one page: an index of its claims, then a section for each. Made from the session's JSON.

A claim's words and numbers are those of the session; the reports of its runs lend the pictures only, where they are
still there and say the same.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossguard.report.html.sections import Section, section_of
from lossguard.report.html.templates import render_template
from lossguard.report.plots.canvas import WITHOUT, is_available
from lossguard.report.verdict_text import visible

Json = Mapping[str, Any]
NUM_PICTURED = 10
"""Claims with pictures, worst first: drawing those of one takes a second, and they have about 100 kB."""
REASON_CHARACTERS = 160
NUM_IDS = 200
TONES = {
    "FAIL": "FAIL",
    "LOST": "INCONCLUSIVE",
    "ERROR": "INCONCLUSIVE",
    "INCONCLUSIVE": "INCONCLUSIVE",
    "NOT RUN": "INCONCLUSIVE",
    "SKIPPED": "",
    "RECORDED": "",
    "KEPT": "",
    "XFAIL": "PASS",
    "PASS": "PASS",
}
"""Colour of a status; one that is not known is not green."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimEntry:
    """One claim; ``section`` is what its run found, None where no run came to a verdict."""

    anchor: str
    claim: str
    status: str
    tone: str
    systems: str
    reason: str
    short: str  # the same, for the index
    facts: tuple[tuple[str, str], ...]
    section: Section | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage:
    """Everything that the template prints."""

    title: str
    verdict: str
    line: str
    entries: tuple[ClaimEntry, ...]
    notes: tuple[str, ...]
    missing: tuple[tuple[str, tuple[str, ...]], ...]  # (what became of them, node ids of tests)
    facts: tuple[tuple[str, str], ...]


def render_session(session: Json, runs: Mapping[str, Json]) -> str:
    """The page of a session (schema session-1); ``runs`` are reports of runs by claim, for their pictures.

    The same values give the same bytes. Raises KeyError or TypeError for values of another form.
    """
    entries = tuple(_entry(claim, runs.get(claim["id"]), at) for at, claim in enumerate(session["claims"], 1))
    page = SessionPage(
        title=f"lossguard session: {_verdict(session)}",
        verdict=_verdict(session),
        line=session["outcome"]["line"],
        entries=entries,
        notes=tuple(_notes(entries)),
        missing=tuple(_missing(session)),
        facts=_facts(session),
    )
    return render_template("session.html.jinja", page)


def _verdict(session: Json) -> str:
    """The worst of its claims; a session without any, or one that is red for another reason, has shown nothing."""
    tones = {TONES.get(claim["status"], "INCONCLUSIVE") for claim in session["claims"]}
    worst = next((tone for tone in ("FAIL", "INCONCLUSIVE", "PASS") if tone in tones), "INCONCLUSIVE")
    return "INCONCLUSIVE" if worst == "PASS" and session["outcome"]["exit_code"] else worst


def _entry(claim: Json, run: Json | None, number: int) -> ClaimEntry:
    against = f"{claim['candidate']} against {claim['baseline']}" if claim["candidate"] else ""
    facts = (
        ("test", claim["test"]),
        ("stock", f"{claim['baseline_source']}: {claim['baseline_reason']}" if claim["baseline_source"] else ""),
        ("report of its run", claim["report_path"]),
    )
    return ClaimEntry(
        anchor=f"claim-{number}",
        claim=claim["id"],
        status=claim["status"],
        tone=TONES.get(claim["status"], "INCONCLUSIVE"),
        systems=against,
        reason=" ".join(claim["reason"].split()),
        short=visible(" ".join(claim["reason"].split()), REASON_CHARACTERS),
        facts=tuple((name, text) for name, text in facts if text),
        section=_section(claim, run, number) if claim["evidence"] else None,
    )


def _section(claim: Json, run: Json | None, number: int) -> Section:
    evidence = claim["evidence"]
    judged = _same_claim(evidence, run) if run is not None and number <= NUM_PICTURED else None
    differences: Sequence[str] = ()
    if run is not None and judged is not None:
        evidence = {**evidence, "figures": judged.get("figures", {})}
        differences = run["fingerprint"].get("differences", {}).get(evidence["candidate"], ())
    return section_of(evidence, {"folder": str(Path(claim["report_path"]).parent)}, differences, number)


def _same_claim(evidence: Json, run: Json) -> Json | None:
    """The run's own entry, if it says what the session heard."""
    same = ("id", "candidate", "verdict", "checks")
    return next((entry for entry in run["claims"] if all(entry[key] == evidence[key] for key in same)), None)


def _notes(entries: Sequence[ClaimEntry]) -> list[str]:
    if not is_available():
        return [WITHOUT]
    bare = [entry.claim for entry in entries if entry.section is not None and not entry.section.figures]
    return [f"without pictures (no report of the run, or none in it): {', '.join(bare[:NUM_IDS])}"] if bare else []


def _missing(session: Json) -> list[tuple[str, tuple[str, ...]]]:
    rows = (
        ("lost: no end of these tests was reported", session["lost_tests"]),
        ("not run: the session was stopped early", session["tests_not_run"]),
    )
    return [(words, tuple(ids[:NUM_IDS])) for words, ids in rows if ids]


def _facts(session: Json) -> tuple[tuple[str, str], ...]:
    run = session["run"]
    required = "every claim that is collected" if run["required"] is None else ", ".join(run["required"])
    return (
        ("made by", f"lossguard {session['producer']['version']}"),
        ("command", shlex.join(["pytest", *run["command"]])),
        ("baseline", run["baseline"] or "none"),
        ("budget", run["budget"]),
        ("seed", "of the configuration" if run["seed"] is None else str(run["seed"])),
        ("required claims", required),
        *((("advisory", "verdicts do not fail this session"),) if run["advisory"] else ()),
    )
