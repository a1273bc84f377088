"""The terminal's rendering of the JSON report: worst first, one row a check, and how to see a failure again.

Pure: JSON values in, text out. Served text is printed with control characters made visible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lossguard.report.verdict_text import by_severity, claim_headline, outcome_line, recheck_command, visible

NUM_EXAMPLES = 3
NUM_NOTES = 3
TOKEN_CHARACTERS = 200


def render_header(report_head: Mapping[str, Any]) -> str:
    """Version, systems, thresholds and power: what is known before any candidate is judged."""
    limits = report_head["thresholds"]
    lines = [
        f"lossguard {report_head['version']}  stock={report_head['stock']}  "
        f"candidates={', '.join(report_head['candidates'])}  model={report_head['model']}  seed={report_head['seed']}",
        f"thresholds from stock ({limits['num_requests']} calibration prompts, {limits['num_tokens']:,} tokens): "
        f"delta q {limits['q_nats']:.3g}, median {limits['delta_median_nats']:.3g}, max {limits['delta_max_nats']:.3g} "
        f"nats; event {limits['event_nats']:.2f} nats; margin {100 * limits['margin']:.2g} points",
        _power(report_head),
    ]
    return "\n".join(lines)


def _power(report_head: Mapping[str, Any]) -> str:
    power = report_head["power"]
    if not power:
        return f"sampled replies at temperature {report_head['temperature']:g}, judged by their distribution"
    return (
        f"power: a true excess of {power['detectable_excess_points']:.2g} points gets FAIL 90 times in 100; "
        f"a lossless candidate gets PASS {100 * power['pass_given_lossless_fraction']:.4g} times in 100 "
        f"({power['num_replicates']} resampled comparisons)"
    )


def render_claim(claim: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """One claim: its table, then (if it is not PASS) the places and the command that shows them again."""
    lines = [
        "",
        f"{claim_headline(claim)}   {_sizes(claim['sizes'])}",
    ]
    lines.extend(_check_rows(by_severity(claim["checks"])))
    lines.extend(_examples(claim, run))
    lines.append(f"  not covered: {'; '.join(claim['does_not_cover'])}")
    return "\n".join(lines)


def render_report(report: Mapping[str, Any]) -> str:
    """The whole report, worst claim first."""
    parts = [render_claim(claim, report["run"]) for claim in by_severity(report["claims"])]
    return "\n".join([*parts, "", render_outcome(report)])


def render_outcome(report: Mapping[str, Any], path: str = "") -> str:
    """The last line; ``path`` is the report that people open, if there is one beside the JSON."""
    return f"{outcome_line(report['outcome'])}    report: {path or report['run'].get('report_path', '')}"


def _check_rows(checks: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table: numbers in columns where a check compares two, its summary where it counts; notes below a row."""
    compared = [check for check in checks if check.get("candidate") and check.get("bound")]
    keys = ("candidate", "stock", "bound", "limit")
    widths = [max(len(text) for text in (key, *(check.get(key, "") for check in compared))) for key in keys]
    header = "  ".join(key.ljust(width) for key, width in zip(keys, widths, strict=True))
    lines = [f"  {'check':<11}{'verdict':<14}{header if compared else ''}".rstrip()]
    for check in checks:
        columns = "  ".join(check.get(key, "").ljust(width) for key, width in zip(keys, widths, strict=True))
        text = columns if check in compared else check["summary"]
        lines.append(f"  {check['check']:<11}{check['verdict']:<14}{text}".rstrip())
        lines.extend(f"{'':<27}{note}" for note in check["notes"][:NUM_NOTES])
        if len(check["notes"]) > NUM_NOTES:
            lines.append(f"{'':<27}and {len(check['notes']) - NUM_NOTES} more, in the report")
    return lines


def _sizes(sizes: Mapping[str, Any]) -> str:
    if not sizes:
        return ""
    return (
        f"{sizes['num_requests']} requests, {sizes['num_clusters']} clusters, "
        f"{sizes['num_tokens_candidate']:,} + {sizes['num_tokens_stock']:,} tokens; diverging requests "
        f"{100 * sizes['diverging_fraction']:.0f} %; DEFF {sizes['deff']:.2f}, rho {sizes['rho']:.4f}"
    )


def _examples(claim: Mapping[str, Any], run: Mapping[str, Any]) -> list[str]:
    if claim["verdict"] == "PASS":
        return []
    if not claim["examples"]:
        return _diagnosis(claim.get("diagnosis"))
    lines = [f"  {_example(example)}" for example in claim["examples"][:NUM_EXAMPLES]]
    lines.extend(_diagnosis(claim.get("diagnosis")))
    lines.append(f"  see it again: {recheck_command(claim, run, claim['examples'][0])}")
    return lines


def _diagnosis(diagnosis: Mapping[str, Any] | None) -> list[str]:
    """Two lines: the counts, and the family with what to look at first (or why there is none)."""
    if diagnosis is None:
        return []
    evidence, _, family = diagnosis["sentence"].rpartition("; likely family: ")
    return [f"  {evidence}", f"  likely family: {family}"]


def _example(example: Mapping[str, Any]) -> str:
    gap = "no such token" if example["gap_nats"] is None else f"gap {example['gap_nats']:.2f} nats"
    text = (
        f"request {example['request_id']}, position {example['position']:,}: "
        f"served {example['served_id']}{_quoted(example.get('served_text'))}  "
        f"best {example['best_id']}{_quoted(example.get('best_text'))}  {gap}"
    )
    replays = example.get("replays") or {}
    if replays:
        text += "; stock's own decode there: " + ", ".join(f"{name} serves {token}" for name, token in replays.items())
    return text


def _quoted(text: str | None) -> str:
    return "" if text is None else f' "{visible(text, TOKEN_CHARACTERS)}"'


def render_table(rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
