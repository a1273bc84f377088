"""Put timing's simulated error rates into a page: python -m tools.timing_rates selftest.json --page PAGE.md"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.error_rates import rows

START, END = "<!-- timing error rates: begin (python -m tools.timing_rates) -->", "<!-- timing error rates: end -->"
SIGNS = {"PASS": " ✓", "FAIL": " **broken**", "INCONCLUSIVE": " ?", None: ""}


def tables(part: Mapping[str, Any]) -> str:
    """One Markdown table for each table of the part: shares in %, with their 99 % Monte Carlo interval."""
    evidence = part["evidence"]
    head = f"{part['summary']}. {evidence['num_experiments']} experiments, {evidence['seconds']:.0f} s."
    return "\n".join(
        [head, *(line for title in _titles(evidence["cells"]) for line in _table(title, evidence["cells"]))]
    )


def _titles(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(cell["table"] for cell in cells))


def _table(title: str, cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    here = {(cell["row"], cell["column"]): cell for cell in cells if cell["table"] == title}
    columns = list(dict.fromkeys(column for _, column in here))
    body = [
        [name, *(_text(here[name, column]) if (name, column) in here else "" for column in columns)]
        for name in dict.fromkeys(row for row, _ in here)
    ]
    yield from ("", f"**{title}**", "", *rows(("", *columns), body))


def _text(cell: Mapping[str, Any]) -> str:
    shares = f"{100 * cell['share']:.2f} ({100 * cell['low_99']:.2f}-{100 * cell['high_99']:.2f})"
    return shares + SIGNS[cell["verdict"]]


def main(given: Sequence[str]) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path, help="what lossguard selftest timing --simulate --json wrote")
    parser.add_argument("--page", type=Path, required=True)
    arguments = parser.parse_args(given)
    found = json.loads(arguments.json.read_text(encoding="utf-8"))
    part = next(part for part in found["parts"] if part["name"] == "timing-simulate")
    text = arguments.page.read_text(encoding="utf-8")
    head, _, rest = text.partition(START)
    _, _, tail = rest.partition(END)
    arguments.page.write_text(f"{head}{START}\n\n{tables(part)}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
