"""Put the simulated error rates into a page: python -m tools.error_rates selftest.json --page docs/validity.md"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

START, END = "<!-- error rates: begin (python -m tools.error_rates) -->", "<!-- error rates: end -->"
CANDIDATES = {
    "none": "lossless",
    "small": "+0.1 spread",
    "spread": "+0.5 spread",
    "bursty": "+0.5 bursty",
    "late": "+0.5 late",
}
VERDICTS = ("FAIL", "not PASS", "PASS", "rate PASS")


def tables(part: Mapping[str, Any]) -> str:
    """Verdicts, coverage and the event row as Markdown."""
    cells, seed = part["evidence"]["cells"], part["evidence"]["seed"]
    number = sum(cell["outcomes"]["FAIL"]["number"] for cell in cells)
    lines = [f"{number:,} comparisons, seed {seed}. Shares in %, with their 95 % interval.", ""]
    lines += rows(("budget", "stock rate, %", "rho", "candidate, points", "runs", *VERDICTS), map(verdict_row, cells))
    lines += ["", "How often each printed interval holds the truth (measured stock, %):", ""]
    measured = [cell for cell in cells if cell["is_measured"] and cell["candidate"] != "small"]
    names = sorted(name for name in measured[0]["outcomes"] if name.startswith("covers: "))
    head = ("interval", *(f"{cell['budget']}, {CANDIDATES[cell['candidate']]}" for cell in measured))
    lines += rows(head, ([name.removeprefix("covers: "), *(value(cell, name) for cell in measured)] for name in names))
    lines += ["", "The event row of a lossless candidate (both arms alike, exact):", ""]
    head = ("budget", "unexplained events by", "per million tokens", "not PASS, %", "FAIL, %")
    return "\n".join([*lines, *rows(head, event_rows(part["evidence"]["events"]))])


def rows(head: Sequence[str], body: Any) -> list[str]:
    """A Markdown table."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]


def verdict_row(cell: Mapping[str, Any]) -> list[str]:
    """One cell of the simulation."""
    shares = [cell["outcomes"][name] for name in VERDICTS]
    return [
        cell["budget"],
        f"{100 * cell['stock_rate']:.3g}",
        f"{cell['rho']:.2g}",
        CANDIDATES[cell["candidate"]],
        f"{cell['outcomes']['FAIL']['number']:,}",
        *(f"{100 * one['share']:.2f} ({100 * one['low_95']:.2f}-{100 * one['high_95']:.2f})" for one in shares),
    ]


def value(cell: Mapping[str, Any], name: str) -> str:
    """One coverage."""
    return f"{100 * cell['outcomes'][name]['share']:.2f}"


def event_rows(events: Mapping[str, Any]) -> list[list[str]]:
    """The event row by budget and source."""
    return [
        [
            budget,
            row["source"],
            f"{row['unexplained_events_per_million_tokens']:.2g}",
            f"{100 * row['not_pass']:.3g}",
            f"{100 * row['fail']:.2g}",
        ]
        for budget, found in events.items()
        for row in found
    ]


def main(given: Sequence[str]) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path, help="what lossguard selftest losslessness --simulate --json wrote")
    parser.add_argument("--page", type=Path, required=True)
    arguments = parser.parse_args(given)
    found = json.loads(arguments.json.read_text(encoding="utf-8"))
    part = next(part for part in found["parts"] if part["name"] == "losslessness-simulate")
    text = arguments.page.read_text(encoding="utf-8")
    head, _, rest = text.partition(START)
    _, _, tail = rest.partition(END)
    arguments.page.write_text(f"{head}{START}\n\n{tables(part)}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
