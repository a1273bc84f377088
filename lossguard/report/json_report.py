"""The JSON report, schema 1: built from claims here, rendered elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from lossguard.records import Claim, Verdict, require_finite
from lossguard.report.verdict_text import claim_headline, outcome_line

SCHEMA_ID = "https://lossguard/schema/report-1.json"
SCHEMA_VERSION = "1.2"
SPEED_CHECK = "speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a report says about the run as a whole; every value is JSON."""

    run: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    prompts: Mapping[str, Any]
    thresholds: Mapping[str, Any]
    integrity: Mapping[str, Any]
    producer_version: str


def claim_to_json(claim: Claim) -> dict[str, Any]:
    """A claim's entry of the report, without the numbers behind its pictures."""
    evidence = claim.evidence
    gains = {
        "gain": evidence.gain,
        "gain_lower_bound": evidence.gain_lower_bound,
        "gain_upper_bound": evidence.gain_upper_bound,
    }
    is_speed = any(check.check == SPEED_CHECK for check in evidence.checks)
    entry = {
        **({"kind": "speed", **gains} if is_speed else {}),
        "id": claim.id,
        "candidate": claim.candidate,
        "baseline": claim.baseline,
        "verdict": claim.verdict.value,
        "checks": [check.to_json() for check in evidence.checks],
        "sizes": dict(evidence.sizes),
        "power": dict(evidence.power),
        "examples": [dict(example) for example in evidence.examples],
        "covers": list(evidence.covers),
        "does_not_cover": list(evidence.does_not_cover),
        **({} if evidence.diagnosis is None else {"diagnosis": evidence.diagnosis.to_json()}),
    }
    return {"headline": claim_headline(entry), **entry}


def build_report(claims: Sequence[Claim], facts: RunFacts, exit_code: int) -> dict[str, Any]:
    """The whole report. Raises ValueError if a number in it is not finite."""
    verdict = Verdict.combine([claim.verdict for claim in claims])
    counts = {
        kind.value.lower(): sum(claim.verdict is kind for claim in claims)
        for kind in (Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE)
    }
    outcome = {
        "verdict": verdict.value,
        "exit_code": exit_code,
        "exit_reason": f"{counts['fail']} fail, {counts['inconclusive']} inconclusive, {counts['pass']} pass",
        "counts": counts,
    }
    report = {
        "schema": SCHEMA_ID,
        "schema_version": SCHEMA_VERSION,
        "producer": {"name": "lossguard", "version": facts.producer_version},
        "run": dict(facts.run),
        "outcome": {**outcome, "line": outcome_line(outcome)},
        "fingerprint": dict(facts.fingerprint),
        "prompts": dict(facts.prompts),
        "thresholds": dict(facts.thresholds),
        "integrity": dict(facts.integrity),
        "claims": [{**claim_to_json(claim), **_figures(claim)} for claim in claims],
    }
    require_finite(report)
    return report


def _figures(claim: Claim) -> dict[str, Any]:
    return {"figures": dict(claim.evidence.figures)} if claim.evidence.figures else {}


def load_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) that ships in the wheel."""
    text = resources.files("lossguard.report").joinpath("schema/report-1.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
