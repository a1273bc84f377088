"""What the head of a claim answers: which check decided, where it shows first, how sure the verdict is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lossguard.report.verdict_text import claim_reason

Json = Mapping[str, Any]


def decisive(claim: Json) -> tuple[tuple[str, str], ...]:
    """The checks that share the claim's verdict if it is not PASS, else all at once."""
    checks = claim["checks"]
    rows = tuple((row["check"], row["summary"]) for row in checks if row["verdict"] == claim["verdict"] != "PASS")
    if rows:
        return rows
    if claim["verdict"] != "PASS":
        return (("verdict", claim_reason(claim)),)
    return (("all pass", ", ".join(row["check"] for row in checks)),)


def first_note(claim: Json) -> str:
    """Of a red claim: what the first red check with notes says first, such as a reply that ends wrongly."""
    red = (check for check in claim["checks"] if check["verdict"] == claim["verdict"] != "PASS")
    return next((check["notes"][0] for check in red if check["notes"]), "")


def sure(claim: Json) -> str:
    """How much the verdict rests on: bounds of a speed claim, false alarms behind a FAIL, else what could be seen."""
    if claim.get("kind") == "speed":
        check = claim["checks"][0]
        return f"gain {check['candidate']}, one-sided 95 % bounds {check['bound']}" if check.get("bound") else ""
    power = claim["power"]
    if not power:
        return ""
    if claim["verdict"] == "FAIL" and "fail_given_lossless_fraction" in power:
        wrong = 100 * power["fail_given_lossless_fraction"]
        return (
            f"stock against itself gets FAIL {wrong:.4g} times in 100 ({power['num_replicates']} resampled comparisons)"
        )
    excess, passing = power["detectable_excess_points"], 100 * power["pass_given_lossless_fraction"]
    catches = (
        "no excess is sure of a FAIL"
        if excess >= 100
        else (f"a true excess of {excess:.2g} points gets FAIL 90 times in 100")
    )
    return f"{catches}; a lossless candidate gets PASS {passing:.4g} times in 100"
