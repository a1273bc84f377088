"""The live selftest as a page: one line per system, from the reports of its runs.

python -m tools.live_table RUNS --write docs/live-selftest.md

RUNS holds ``*report.json`` of a selftest that ran to its end or was cut short. What stands around the tables stays.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossguard_suites.adversarial.faults import FAULTS, Fault

START, END = "<!-- live selftest: begin (python -m tools.live_table) -->", "<!-- live selftest: end -->"
_COLUMNS = (
    "",
    "system",
    "verdict",
    "failing checks",
    "mismatches, %",
    "stock, %",
    "unexplained / audited",
    "family",
    "diagnosis",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One claim of a report beside the fault or control that it is about."""

    planted: Fault
    verdict: str
    failed: tuple[str, ...]
    rate: float  # a fraction, as ``stock_rate``
    stock_rate: float
    unexplained: int  # events
    audited: int
    diagnosed: str  # empty unless it failed

    @property
    def is_met(self) -> bool:
        """A control passes; a fault fails by a check that is named for it."""
        if self.planted.is_control:
            return self.verdict == "PASS"
        return self.verdict == "FAIL" and not set(self.planted.seen_by).isdisjoint(self.failed)

    @property
    def diagnosis(self) -> str:
        """``right``, ``unknown`` (where a family should be named) or ``wrong``."""
        if self.diagnosed == self.planted.family:
            return "right"
        return "unknown" if self.diagnosed == "unknown" else "wrong"


def read_reports(folder: Path) -> list[Judged]:
    """Every claim of every report, in the order of the registry. Raises SystemExit if there is none."""
    known = {item.name: item for item in FAULTS}
    found = [
        _judged(known[claim["candidate"]], claim)
        for path in sorted(folder.rglob("*report.json"))
        for claim in json.loads(path.read_text(encoding="utf-8"))["claims"]
    ]
    if not found:
        raise SystemExit(f"{folder} holds no report of a run")
    order = {item.name: place for place, item in enumerate(FAULTS)}
    return sorted(found, key=lambda item: order[item.planted.name])


def _judged(planted: Fault, claim: Mapping[str, Any]) -> Judged:
    checks = {check["check"]: check for check in claim["checks"]}
    event, sizes = checks["event"]["evidence"], claim["sizes"]
    audited = event.get("num_audited_positions", 0)
    return Judged(
        planted=planted,
        verdict=claim["verdict"],
        failed=tuple(name for name, check in checks.items() if check["verdict"] == "FAIL"),
        rate=sizes["num_mismatches_candidate"] / max(sizes["num_tokens_candidate"], 1),
        stock_rate=sizes["num_mismatches_stock"] / max(sizes["num_tokens_stock"], 1),
        unexplained=audited - event.get("num_explained_positions", 0),
        audited=audited,
        diagnosed=(claim.get("diagnosis") or {}).get("family", ""),
    )


def tables(judged: Sequence[Judged]) -> str:
    """Counts, then the faults, then the controls, as Markdown."""
    faults = [item for item in judged if not item.planted.is_control]
    controls = [item for item in judged if item.planted.is_control]
    names = {item.planted.name for item in judged}
    missing = [item.name for item in FAULTS if not item.is_pending and item.name not in names]
    kinds = Counter(item.diagnosis for item in faults if item.diagnosed)
    lines = [
        f"{_met(faults)} of {len(faults)} faults FAIL by a check that is named for them, "
        f"{_met(controls)} of {len(controls)} controls PASS. Not judged: {', '.join(missing) or 'none'}.",
        "",
        f"Diagnoses of the faults: {kinds['right']} right, {kinds['unknown']} unknown where a family fits, "
        f"{kinds['wrong']} wrong.",
        "",
        *_table(faults, _COLUMNS),
        "",
        *_table(controls, _COLUMNS[:7]),
    ]
    return "\n".join(lines)


def _met(judged: Iterable[Judged]) -> int:
    return sum(item.is_met for item in judged)


def _table(judged: Sequence[Judged], columns: Sequence[str]) -> list[str]:
    rows = [columns, ["---"] * len(columns), *(_cells(item)[: len(columns)] for item in judged)]
    return [f"| {' | '.join(row)} |" for row in rows]


def _cells(item: Judged) -> list[str]:
    verdict = item.verdict if item.is_met else f"**{item.verdict}**"
    diagnosis = item.diagnosed if item.diagnosis == "right" else f"{item.diagnosed} ({item.diagnosis})"
    return [
        item.planted.code,
        f"`{item.planted.name}`",
        verdict,
        ", ".join(item.failed) or "none",
        f"{100 * item.rate:.2f}",
        f"{100 * item.stock_rate:.2f}",
        f"{item.unexplained} / {item.audited}",
        str(item.planted.family),
        diagnosis,
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or put them between the markers of a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder with the reports of the runs")
    parser.add_argument("--write", type=Path, help="page with the markers")
    given = parser.parse_args(arguments)
    text = tables(read_reports(given.runs))
    if given.write is None:
        print(text)
        return
    head, _, rest = given.write.read_text(encoding="utf-8").partition(START)
    _, _, tail = rest.partition(END)
    given.write.write_text(f"{head}{START}\n\n{text}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
