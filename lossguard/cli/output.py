"""Writing a report where the user asked for it, and where people look for it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lossguard.cli.console import write
from lossguard.run_folder import write_atomically


def write_report(path: Path | None, report: Mapping[str, Any]) -> None:
    """Write ``report`` to ``path``, if there is one."""
    if path is not None:
        write_atomically(path, json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def finish(report: Mapping[str, Any], json_path: Path | None) -> None:
    """After a judged run: its JSON where asked, its page beside the run's own JSON, the closing line, GitHub's files.

    Raises StorageError LG0607.
    """
    from lossguard.report.github import is_github, write_github
    from lossguard.report.html.page import write_html
    from lossguard.report.terminal import render_outcome

    write_report(json_path, report)
    source = Path(report["run"]["report_path"])
    page = write_html(source.with_suffix(".html"), report, source)
    write(f"\n{render_outcome(report, str(page))}")
    if is_github(os.environ):
        for line in write_github(report, os.environ, json_path=str(source), html_path=str(page)):
            write(line)
