"""What people read at the end: a row per claim, worst first, then one line with the exit code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lossguard.pytest_plugin.decision import RED, Decision, Row

NUM_IDS = 10
COLOURS = {"PASS": "green", "RECORDED": "green", "KEPT": "green", "XFAIL": "yellow", "SKIPPED": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryFacts:
    """What the summary needs besides the decision."""

    explain: bool = False
    paths: tuple[Path, ...] = ()
    unused: tuple[str, ...] = ()


def write_summary(terminal: pytest.TerminalReporter, decision: Decision, facts: SummaryFacts) -> None:
    """Table, lost tests, explanations, paths, and the closing line."""
    terminal.section("lossguard")
    for row, line in zip(decision.rows, table_lines(decision.rows), strict=True):
        terminal.write_line(line, **{COLOURS.get(row.status, "red"): True})
    for line in detail_lines(decision, facts):
        terminal.write_line(line)
    is_red = any(row.status in RED for row in decision.rows) or decision.exit_code != 0
    terminal.write_line(decision.line, **{"red" if is_red else "green": True}, bold=True)


def table_lines(rows: Sequence[Row]) -> list[str]:
    """One line per claim: status, claim, candidate and where its baseline came from, reason."""
    cells = [(row.status, row.claim, _systems(row), _one_line(row.reason) + _power(row)) for row in rows]
    widths = [max(len(cell[column]) for cell in cells) for column in range(3)] if cells else []
    return [
        "  ".join([*(text.ljust(width) for text, width in zip(cell, widths, strict=False)), cell[3]]).rstrip()
        for cell in cells
    ]


def detail_lines(decision: Decision, facts: SummaryFacts) -> Iterator[str]:
    """Everything below the table."""
    yield from _ids("lost: no end of these tests was reported", decision.lost)
    yield from _ids("not run: the session was stopped early", decision.not_run)
    for row in decision.rows:
        if facts.explain and row.message is not None and row.message.text:
            yield ""
            yield from f"{row.claim}: {row.message.text}".splitlines()
    for row in decision.rows:
        if row.message is not None and row.message.report_path:
            yield f"report of {row.claim}: {row.message.report_path}"
    yield from _live_lines(decision.rows)
    if facts.unused:
        yield f"records of claims that no test of this session makes: {', '.join(facts.unused)}"
    for path in facts.paths:
        yield f"report of this session: {path}"


def _live_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Why stock was served although it might have been recorded: a line per reason."""
    claims: dict[str, list[str]] = {}
    for row in rows:
        if row.message is not None and row.message.source == "live":
            claims.setdefault(row.message.source_reason, []).append(row.claim)
    for reason, names in claims.items():
        yield f"stock ran live ({reason}): {', '.join(names[:NUM_IDS])}{' ...' if len(names) > NUM_IDS else ''}"


def _power(row: Row) -> str:
    """What the run of a claim could have caught; part of the row of a PASS, which else says nothing about its size."""
    power = row.message.evidence.get("power", {}) if row.message else {}
    excess = power.get("detectable_excess_points")
    return "" if row.status != "PASS" or excess is None else f"; power: {power_words(excess)}"


def power_words(excess_points: float) -> str:
    """The smallest excess that a run would catch, in words; 100 stands for none."""
    if excess_points >= 100:
        return "no excess is sure of a FAIL"
    return f"a true excess of {excess_points:.2g} points gets FAIL 90 times in 100"


def _systems(row: Row) -> str:
    if row.message is None or not row.message.candidate:
        return ""
    return f"{row.message.candidate} against {row.message.baseline} ({row.message.source})"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _ids(title: str, node_ids: Sequence[str]) -> Iterator[str]:
    if node_ids:
        yield f"{title}: {', '.join(node_ids[:NUM_IDS])}"
    if len(node_ids) > NUM_IDS:
        yield f"  and {len(node_ids) - NUM_IDS} more"


def write_without_terminal(config: pytest.Config, line: str) -> None:
    """The closing line where no terminal plugin prints a summary: on stdout, past pytest's capture."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    if capture is None:
        print(line, flush=True)  # noqa: T201
        return
    with capture.global_and_fixture_disabled():
        print(line, flush=True)  # noqa: T201
