"""``lossguard compare`` and ``lossguard history``: runs against each other, and over time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lossguard.cli.console import write
from lossguard.cli.output import write_report
from lossguard.run_folder import reading

JsonOption = Annotated[Path | None, typer.Option("--json", help="write the same as JSON to this file")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("compare")(compare)
    app.command("history")(history)


def compare(
    before: Annotated[Path, typer.Argument(help="a run folder or JSON report")],
    after: Annotated[Path, typer.Argument(help="the run to hold against it")],
    json_path: JsonOption = None,
) -> int:
    """Compare two finished runs; exit 0 if no claim got worse, 1 if one did, 10 if that cannot be told."""
    from lossguard.report.comparison import compare_reports, render_comparison
    from lossguard.report.reading import read_report, report_path

    old, new = read_report(before), read_report(after)
    for place, report in ((before, old), (after, new)):  # each by itself, so that an error names the right file
        with reading(report_path(place)):
            compare_reports(report, report)
    found = compare_reports(old, new)
    write_report(json_path, found.to_json())
    write(render_comparison(found))
    return found.exit_code


def history(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="run folders, JSON reports, or folders of runs (default: .lossguard)")
    ] = None,
    database: Annotated[Path, typer.Option(help="the SQLite file that keeps what was read")] = Path(
        ".lossguard/history.sqlite"
    ),
    candidate: Annotated[str | None, typer.Option(help="only this candidate")] = None,
    plot: Annotated[Path | None, typer.Option(help="write the trend of mismatch rate and speed as SVG")] = None,
    json_path: JsonOption = None,
) -> int:
    """Read finished runs into a database, and show every claim over time. Runs stay in it when their folders go."""
    from lossguard.history.database import History
    from lossguard.history.trend import render_history, write_trend

    places = list(runs) if runs else [Path(".lossguard")]
    with History.open(database) as store:
        for problem in store.add(places):
            sys.stderr.write(f"{problem}\n")
        rows = store.rows(candidate)
    write_report(json_path, {"claims": [row.to_json() for row in rows]})
    write(render_history(rows))
    if plot is not None:
        write(f"plot: {write_trend(plot, rows)}")
    return 0
