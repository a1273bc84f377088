"""The words of a verdict. The JSON report carries them, and every rendering prints them as they stand there."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

WORDS = {"PASS": "LOSSLESS", "FAIL": "NOT LOSSLESS", "INCONCLUSIVE": "INCONCLUSIVE"}
SPEED_WORDS = {
    "faster": {"PASS": "FASTER", "FAIL": "NOT FASTER", "INCONCLUSIVE": "INCONCLUSIVE"},
    "not-slower": {"PASS": "NOT SLOWER", "FAIL": "SLOWER", "INCONCLUSIVE": "INCONCLUSIVE"},
}
SEVERITY = {"FAIL": 0, "INCONCLUSIVE": 1, "PASS": 2}


def claim_headline(claim: Mapping[str, Any]) -> str:
    """``NOT LOSSLESS  faulty against stock``: as the report carries it, or made for a report of schema 1.0 or 1.1."""
    return str(claim.get("headline") or f"{_word(claim)}  {claim['candidate']} against {claim['baseline']}")


def claim_reason(claim: Mapping[str, Any]) -> str:
    """The checks that decided: those that share the claim's verdict if it is not PASS, else how many passed."""
    if "reason" in claim:  # of a test session, where more than checks decides
        return str(claim["reason"])
    decisive = [check for check in claim["checks"] if check["verdict"] == claim["verdict"] != "PASS"]
    if not decisive:
        return f"{len(claim['checks'])} checks"
    return "; ".join(f"{check['check']}: {check['summary']}" for check in decisive)


def outcome_line(outcome: Mapping[str, Any]) -> str:
    """``lossguard: FAIL (1 fail, 0 inconclusive, 2 pass) -> exit 1``."""
    made = f"lossguard: {outcome['verdict']} ({outcome['exit_reason']}) -> exit {outcome['exit_code']}"
    return str(outcome.get("line") or made)


def recheck_command(claim: Mapping[str, Any], run: Mapping[str, Any], example: Mapping[str, Any]) -> str:
    """What looks at one position again; ids that a shell would read otherwise are quoted."""
    place = ["--request", str(example["request_id"]), "--position", str(example["position"])]
    folder = str(run.get("folder", "RUN"))
    return visible(shlex.join(["lossguard", "recheck", folder, "--candidate", claim["candidate"], *place]))


def by_severity(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Claims or checks, worst first; the order is kept within a verdict."""
    return sorted(rows, key=lambda row: SEVERITY[row["verdict"]])


def visible(text: str, limit: int = 2000) -> str:
    """Text that came from outside, for people: control, bidirectional and other unprintable characters as escapes.

    Nothing in it can end a line, colour a terminal or turn the reading direction. Longer texts are cut at ``limit``
    characters, and say so.
    """
    cut = text if len(text) <= limit else text[:limit]
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in cut)
    return shown if len(text) <= limit else f"{shown}... ({len(text):,} characters)"


def _word(claim: Mapping[str, Any]) -> str:
    if claim.get("kind") != "speed":
        return WORDS[claim["verdict"]]
    rule = claim["checks"][0]["evidence"].get("rule", "faster")
    return SPEED_WORDS[rule][claim["verdict"]]
