"""Mismatch rate, rho and DEFF of stock per prompt set in finished runs; optionally the statistics to simulate from.

python -m tools.stock_statistics RUN [RUN ...]
python -m tools.stock_statistics RUN [RUN ...] --json rho.json --write fixtures/stock-statistics
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lossguard.selftest.measure import measure, read_stock_run, rho_by_set
from lossguard.selftest.statistics import DEFAULT_NAME, save_statistics

COLUMNS = ("set", "num_clusters", "num_tokens", "num_mismatches", "rate", "rho", "rho_standard_error", "deff")


def table(rows: Sequence[dict[str, object]]) -> str:
    """The rows as Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
    for row in rows:
        cells = [f"{value:.3g}" if isinstance(value := row[name], float) else str(value) for name in COLUMNS]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_manifest(folder: Path, paths: Sequence[Path], command: str) -> None:
    """MANIFEST.toml: hash and origin of every file."""
    lines = ["# Statistics of measured stocks, from which `lossguard selftest losslessness --simulate` draws.", ""]
    for path in paths:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines += ["[[file]]", f'name = "{path.name}"', f'sha256 = "{digest}"', f'made_by = "{command}"', ""]
    (folder / "MANIFEST.toml").write_text("\n".join(lines), encoding="utf-8")


def main(given: Sequence[str]) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the statistics and their MANIFEST.toml")
    parser.add_argument("--name", default=DEFAULT_NAME)
    arguments = parser.parse_args(given)
    runs = [read_stock_run(path) for path in arguments.runs]
    rows = rho_by_set(runs)
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    if arguments.write:
        paths = save_statistics(arguments.write, measure(arguments.name, runs))
        write_manifest(
            arguments.write, paths, "python -m tools.stock_statistics RUN ... --write fixtures/stock-statistics"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
