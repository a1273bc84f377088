"""What a session leaves behind: GitHub's files, its page, its JSON. Files say what the exit code says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lossguard.errors import LossguardError, UsageError
from lossguard.pytest_plugin.decision import Decision
from lossguard.pytest_plugin.options import Settings
from lossguard.pytest_plugin.problems import bad_report_path
from lossguard.pytest_plugin.session_report import build_session_report, extended, to_text

DRAWING_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What drawing a run's numbers may raise, should they not be what pictures expect."""


@dataclass
class Documents:
    """Writes them for one session; ``annotations`` are lines for GitHub's log."""

    config: pytest.Config
    settings: Settings
    required: Sequence[str] | None
    annotations: list[str] = field(default_factory=list)

    def remove_old(self) -> None:
        """An earlier session's files must not be taken for this one's, should this one be killed."""
        for path in (self.settings.json, self.settings.html):
            if path is None:
                continue
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise pytest.UsageError(str(bad_report_path(path, error.strerror or str(error)))) from error

    def tell_github(self, decision: Decision) -> str:
        """Summary, outputs and annotations in GitHub Actions. Returns what went wrong, if anything."""
        if os.environ.get("GITHUB_ACTIONS") != "true":
            return ""
        from lossguard.pytest_plugin.github import write_session

        try:
            self.annotations = write_session(decision, root=self.config.rootpath, settings=self.settings)
        except LossguardError as error:
            return f"GitHub's files were not written: {error.code}"
        return ""

    def write_page(self, decision: Decision) -> str:
        """The HTML page where it was asked for. Returns what went wrong, if anything."""
        path = self.settings.html
        if path is None:
            return ""
        from jinja2 import TemplateError

        from lossguard.report.html.session import render_session
        from lossguard.run_folder import write_atomically

        try:
            report = self._report(decision)
            write_atomically(path, render_session(report, _runs(report)))
        except LossguardError as error:
            return f"{path} was not written: {error.code}"
        except (*DRAWING_ERRORS, TemplateError) as error:
            return f"{path} was not drawn: {type(error).__name__}: {error}"  # the decision and its other files stand
        return ""

    def write_report(self, decision: Decision) -> str:
        """The JSON where it was asked for. Returns what went wrong, if anything."""
        path = self.settings.json
        if path is None:
            return ""
        from lossguard.run_folder import write_atomically

        try:
            write_atomically(path, to_text(extended(self.config, self._report(decision))))
        except LossguardError as error:
            return f"{path} was not written: {error.code}"
        return ""

    def _report(self, decision: Decision) -> dict[str, Any]:
        command = [str(text) for text in self.config.invocation_params.args]
        return build_session_report(decision, self.settings, self.required, command)


def _runs(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Reports of the claims' runs that are still there: they have the numbers of the pictures."""
    from lossguard.report.html.session import NUM_PICTURED
    from lossguard.report.reading import read_report

    found: dict[str, Mapping[str, Any]] = {}
    for claim in report["claims"][:NUM_PICTURED]:
        if claim["report_path"] and Path(claim["report_path"]).is_file():
            try:
                found[claim["id"]] = read_report(Path(claim["report_path"]))
            except UsageError:  # the page names the claims that have no pictures
                continue
    return found
