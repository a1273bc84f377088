"""GitHub Actions: a session's rows in the form that the report's renderings take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lossguard.pytest_plugin.decision import RED, Decision, Row
from lossguard.pytest_plugin.options import Settings
from lossguard.report.github import write_github


def write_session(decision: Decision, *, root: Path, settings: Settings) -> list[str]:
    """Append to the files that the environment names for summary and outputs; return annotations for stdout.

    An advisory session annotates as warnings. Raises StorageError LG0607.
    """
    report = as_report(decision, root, Path(os.environ.get("GITHUB_WORKSPACE") or root))
    lines = write_github(report, os.environ, json_path=str(settings.json or ""), html_path=str(settings.html or ""))
    return [line.replace("::error ", "::warning ", 1) for line in lines] if settings.advisory else lines


def as_report(decision: Decision, root: Path, workspace: Path) -> dict[str, Any]:
    """JSON with a report's names; a claim without evidence has no checks and no examples."""
    claims = [_claim(row, root, workspace) for row in decision.rows]
    verdicts = {claim["verdict"] for claim in claims}
    worst = next((word for word in ("FAIL", "INCONCLUSIVE", "PASS") if word in verdicts), "INCONCLUSIVE")
    outcome = {
        "verdict": "INCONCLUSIVE" if worst == "PASS" and decision.exit_code else worst,
        "exit_code": decision.exit_code,
        "exit_reason": decision.reason,
        "line": decision.line,
    }
    return {"outcome": outcome, "run": {}, "claims": claims}


def _claim(row: Row, root: Path, workspace: Path) -> dict[str, Any]:
    evidence: Mapping[str, Any] = row.message.evidence if row.message else {}
    verdict = {"FAIL": "FAIL"}.get(row.status, "INCONCLUSIVE" if row.status in RED else "PASS")
    is_own = evidence.get("verdict") == row.status
    path = row.message.report_path if row.message else ""
    return {
        "id": row.claim,
        "candidate": row.message.candidate if row.message else "",
        "verdict": verdict,
        "headline": evidence["headline"] if is_own and "headline" in evidence else f"{row.status}  {row.claim}",
        "reason": " ".join(row.reason.split()),
        "checks": evidence.get("checks", []),
        "examples": evidence.get("examples", []),
        "does_not_cover": evidence.get("does_not_cover", []),
        "file": _relative(root / row.node_id.partition("::")[0], workspace) if row.node_id else "",
        "run": {"folder": str(Path(path).parent)} if path else {},
    }


def _relative(path: Path, workspace: Path) -> str:
    return str(path.relative_to(workspace)) if path.is_relative_to(workspace) else ""
