"""``lossguard report``: any form of a report, made from the JSON that a run wrote."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lossguard.cli.console import write
from lossguard.run_folder import reading, write_atomically


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    run: Annotated[Path, typer.Argument(help="a run folder, or a JSON report")],
    html: Annotated[bool, typer.Option("--html", help="write one HTML file beside the JSON")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="print markdown, as a summary of a CI job")] = False,
    junit: Annotated[bool, typer.Option("--junit", help="write JUnit XML beside the JSON")] = False,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="write the pictures to zoom, a second file")
    ] = False,
    github: Annotated[
        bool, typer.Option("--github", help="annotations, step summary and outputs of GitHub Actions")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="the file to write, where one form is asked for")] = None,
) -> int:
    """Show a finished run again: on the terminal, or as HTML, markdown, JUnit or for GitHub Actions.

    Exits 0 whatever the verdict is: the command that judged has said it.
    """
    from lossguard.report.reading import read_report, report_path
    from lossguard.report.terminal import render_report

    forms = {"html": html, "markdown": markdown, "junit": junit, "interactive": interactive}
    asked = [name for name, is_on in forms.items() if is_on]
    if output is not None and len(asked) != 1:
        raise typer.BadParameter("--output goes with exactly one of --html, --markdown, --junit and --interactive")
    found, source = read_report(run), report_path(run)
    with reading(source):
        if not asked and not github:
            write(render_report(found))
        for name in asked:
            _make(name, found, source, output)
        if github:
            _github(found, source)
    return 0


def _make(form: str, found: Mapping[str, Any], source: Path, output: Path | None) -> None:
    if form == "html":
        from lossguard.report.html.page import write_html

        write(f"report: {write_html(output or source.with_suffix('.html'), found, source)}")
    elif form == "interactive":
        from lossguard.report.interactive import render_interactive

        path = output or source.with_name(f"{source.stem}-interactive.html")
        write(f"report: {write_atomically(path, render_interactive(found))}")
    elif form == "junit":
        from lossguard.report.junit import render_junit

        write(f"report: {write_atomically(output or source.with_suffix('.xml'), render_junit(found))}")
    else:
        _markdown(found, output)


def _markdown(found: Mapping[str, Any], output: Path | None) -> None:
    from lossguard.report.markdown import render_markdown

    text = render_markdown(found)
    if output is None:
        write(text.rstrip("\n"))
    else:
        write(f"report: {write_atomically(output, text)}")


def _github(found: Mapping[str, Any], source: Path) -> None:
    from lossguard.report.github import write_github

    html = source.with_suffix(".html")
    for line in write_github(found, os.environ, json_path=str(source), html_path=str(html) if html.is_file() else ""):
        write(line)
