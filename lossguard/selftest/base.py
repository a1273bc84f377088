"""What a part of the selftest gets and what it gives back. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lossguard.gate_result import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS
from lossguard.listener import Listener
from lossguard.records import Verdict, require_finite

SCHEMA_VERSION = 1
DEFAULT_SEED = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestOptions:
    """What the user asked for. Every part draws from ``seed`` alone, so that ``num_workers`` changes no figure.

    ``size`` scales the simulation: comparisons a cell (None: the part's default, which ``is_full`` raises).
    ``folder`` is where runs are made; ``resume`` names one to continue; ``device`` is that of live systems.
    """

    seed: int = DEFAULT_SEED
    is_full: bool = False
    folder: Path = Path(".lossguard")
    resume: Path | None = None
    num_workers: int = 1
    size: int | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows for people; the numbers behind them are in the part's evidence."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestPart:
    """The outcome of one part: a verdict on the instrument, with its tables and the numbers as JSON.

    FAIL: the instrument breaks a promise; ``problems`` says which. INCONCLUSIVE: too few runs to tell.
    """

    name: str
    verdict: Verdict
    summary: str
    tables: tuple[Table, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """True only for PASS."""
        return self.verdict.is_pass

    def to_json(self) -> dict[str, Any]:
        """A JSON object. Raises ValueError if the evidence holds NaN, infinity or no JSON type."""
        data = {**asdict(self), "verdict": self.verdict.value}
        require_finite(data)
        loaded: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
        return loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestResult:
    """All parts that ran."""

    parts: tuple[SelftestPart, ...]

    @property
    def verdict(self) -> Verdict:
        """FAIL if any part fails, PASS if all pass, else INCONCLUSIVE."""
        return Verdict.combine([part.verdict for part in self.parts])

    @property
    def exit_code(self) -> int:
        """0 PASS, 1 FAIL, 10 INCONCLUSIVE (docs/exit-codes.md)."""
        codes = {Verdict.PASS: EXIT_PASS, Verdict.FAIL: EXIT_FAIL, Verdict.INCONCLUSIVE: EXIT_INCONCLUSIVE}
        return codes[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """A JSON object with one entry per part."""
        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": self.verdict.value,
            "parts": [part.to_json() for part in self.parts],
        }


RunPart = Callable[[SelftestOptions, Listener], SelftestPart]
"""What an entry point of ``lossguard.selftests`` names: a function from options and a listener to one part."""


def render(part: SelftestPart) -> str:
    """The part as text: verdict, problems, tables, notes."""
    lines = [f"{part.verdict.value}  {part.name}: {part.summary}"]
    lines += [f"  {problem}" for problem in part.problems]
    for table in part.tables:
        lines += ["", f"  {table.title}", *(f"  {line}" for line in _aligned([table.columns, *table.rows]))]
    lines += ["", *(f"  {note}" for note in part.notes)] if part.notes else []
    return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
