"""``--lossguard-json``: the session as one document, schema ``session-1``."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

import lossguard
from lossguard.pytest_plugin.decision import Decision, Row
from lossguard.pytest_plugin.options import Settings
from lossguard.pytest_plugin.transport import encode

if TYPE_CHECKING:
    import pytest

SCHEMA_ID = "https://lossguard/schema/session-1.json"
SCHEMA_VERSION = "1.2"


def build_session_report(
    decision: Decision, settings: Settings, required: Sequence[str] | None, command: Sequence[str]
) -> dict[str, Any]:
    """The document. Evidence is the claim's entry of the run's own ``report.json``."""
    return {
        "schema": SCHEMA_ID,
        "schema_version": SCHEMA_VERSION,
        "producer": {"name": "lossguard", "version": lossguard.__version__},
        "run": {
            "seed": settings.seed,
            "budget": settings.budget,
            "baseline": settings.baseline,
            "update": settings.update,
            "advisory": settings.advisory,
            "required": None if required is None else list(required),
            "command": list(command),
        },
        "outcome": {
            "exit_code": decision.exit_code,
            "exit_reason": decision.reason,
            "counts": dict(decision.counts),
            "recorded": decision.counts["recorded"],
            "line": decision.line,
        },
        "claims": [_claim(row) for row in decision.rows],
        "lost_tests": list(decision.lost),
        "tests_not_run": list(decision.not_run),
    }


def _claim(row: Row) -> dict[str, Any]:
    message = row.message
    return {
        "id": row.claim,
        "status": row.status,
        "reason": row.reason,
        "test": row.node_id,
        "worker": row.worker,
        "candidate": message.candidate if message else "",
        "baseline": message.baseline if message else "",
        "baseline_source": message.source if message else "",
        "baseline_reason": message.source_reason if message else "",
        "report_path": message.report_path if message else "",
        "evidence": dict(message.evidence) if message else {},
    }


def extended(config: pytest.Config, report: dict[str, Any]) -> dict[str, Any]:
    """The document with what other plugins add: facts and sections, never another verdict."""
    given: list[Mapping[str, Any] | None] = config.hook.pytest_lossguard_fingerprint(config=config)
    facts: dict[str, Any] = {}
    for more in given:
        facts.update(more or {})
    full = {**report, "facts": facts}
    sections: dict[str, Any] = {}
    for more in config.hook.pytest_lossguard_report(config=config, report=copy.deepcopy(full)):
        sections.update(more or {})
    return {**full, "sections": sections}


def load_session_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) that ships in the wheel."""
    text = resources.files("lossguard.report").joinpath("schema/session-1.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def to_text(report: Mapping[str, Any]) -> str:
    """The document as text. Raises IntegrityError LG0809 if a hook added what is no JSON."""
    encode(dict(report))
    return json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
