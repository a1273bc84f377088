"""From the audit to one row per claim, and from the rows to the exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lossguard.pytest_plugin.audit import Audit, Heard, worst
from lossguard.pytest_plugin.transport import ClaimMessage

EXIT_OK, EXIT_RED, EXIT_USAGE, EXIT_NOTHING = 0, 1, 4, 5
ORDER = ("FAIL", "LOST", "ERROR", "INCONCLUSIVE", "NOT RUN", "SKIPPED", "XFAIL", "RECORDED", "KEPT", "PASS")
RED = frozenset({"FAIL", "LOST", "ERROR", "INCONCLUSIVE", "NOT RUN"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One claim as it is decided. ``status`` is one of ORDER."""

    claim: str
    status: str
    reason: str
    node_id: str = ""
    worker: str = ""
    message: ClaimMessage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What else decides: pytest's own exit status, what was required, how the session ended.

    ``num_deselected`` claims were collected and not selected; ``skipped_modules`` mention lossguard and were skipped
    while they were collected.
    """

    exit_status: int
    required: tuple[str, ...] | None = None
    stopped_early: str = ""
    advisory: bool = False
    recording: bool = False
    asked_to_judge: bool = False
    has_baseline: bool = False
    num_deselected: int = 0
    skipped_modules: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def has_lost_sight(self) -> bool:
        """Whether claims were there that this session does not make."""
        return self.num_deselected > 0 or bool(self.skipped_modules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The rows worst first, the exit code, and the line that says both. ``lost`` are node ids without a claim."""

    rows: tuple[Row, ...]
    lost: tuple[str, ...]
    not_run: tuple[str, ...]
    exit_code: int
    counts: Mapping[str, int]
    reason: str
    line: str


def make_rows(audit: Audit, facts: Circumstances) -> list[Row]:
    """A row per claim that was collected or is required."""
    rows = [_row(audit, node_id, claim, facts) for node_id, claim in audit.claims.items()]
    reached = {row.claim for row in rows}
    for claim in facts.required or ():
        if claim not in reached:
            rows.append(Row(claim=claim, status="INCONCLUSIVE", reason="required, but no test of this session made it"))
    return rows


def _row(audit: Audit, node_id: str, claim: str, facts: Circumstances) -> Row:
    candidates = [_one(record, node_id, claim, facts) for record in audit.of_claim(node_id)]
    return min(candidates, key=lambda row: ORDER.index(row.status))


def _one(record: Heard | None, node_id: str, claim: str, facts: Circumstances) -> Row:
    def row(status: str, reason: str, message: ClaimMessage | None = None) -> Row:
        worker = record.worker if record else ""
        return Row(claim=claim, status=status, reason=reason, node_id=node_id, worker=worker, message=message)

    if record is None:
        return row("NOT RUN", facts.stopped_early) if facts.stopped_early else row("LOST", "no report of it arrived")
    if record.is_crashed:
        return row("LOST", record.problem)
    if not record.is_finished:
        return row("LOST", "its worker never reported the end of the test")
    if record.problem:
        return row("INCONCLUSIVE", record.problem)
    if not record.messages:
        return _without_verdict(row, record, is_required=facts.required is None or claim in facts.required)
    message = worst(list(record.messages.values()))
    return row(*_by_verdict(message, record), message)


def _without_verdict(row: object, record: Heard, *, is_required: bool) -> Row:
    assert callable(row), "the maker of rows"
    if record.is_xfailed:
        made: Row = row("INCONCLUSIVE", "marked xfail, and it failed without a verdict")
    elif record.is_failed:
        made = row("INCONCLUSIVE", "the test failed before it had a verdict")
    elif record.is_skipped and not is_required:
        made = row("SKIPPED", f"skipped and not required: {record.skip_reason}")
    elif record.is_skipped:
        made = row("INCONCLUSIVE", f"skipped: {record.skip_reason}")
    else:
        made = row("INCONCLUSIVE", "the test ended without a verdict")
    return made


def _by_verdict(message: ClaimMessage, record: Heard) -> tuple[str, str]:
    if record.is_xfailed:
        others = sorted({other.status for other in record.messages.values()} - {"FAIL"})
        if message.status == "FAIL" and others:
            return "FAIL", f"marked xfail, and beside the FAIL there is {' and '.join(others)}: {message.summary}"
        if message.status == "FAIL":
            return "XFAIL", f"expected to fail: {message.summary}"
        return "INCONCLUSIVE", f"marked xfail, and the verdict is {message.status}: {message.summary}"
    if record.is_xpassed:
        return "FAIL", f"marked xfail, and the verdict is {message.status}"
    if record.is_failed and message.status in ("PASS", "RECORDED", "KEPT"):
        return "INCONCLUSIVE", f"{message.status}, but the test failed afterwards"
    return message.status, message.summary


def decide(audit: Audit, facts: Circumstances, rows: Sequence[Row]) -> Decision:
    """The exit code: pytest's own if nothing is red or pytest was interrupted, else 1, or 4 for usage alone."""
    ordered = tuple(sorted(rows, key=lambda row: (ORDER.index(row.status), row.claim)))
    missing = [node_id for node_id in audit.lost() if node_id not in audit.claims]
    untouched = {node_id for node_id in missing if all(record is None for record in audit.of_claim(node_id))}
    not_run = tuple(sorted(untouched)) if facts.stopped_early else ()
    lost = tuple(node_id for node_id in missing if node_id not in not_run)
    counts = _counts(ordered, len(lost) + audit.num_lost_verdicts(), len(not_run))
    code = _exit_code(audit, facts, ordered, counts)
    reason = _reason(facts, ordered, counts)
    return Decision(
        rows=ordered,
        lost=lost,
        not_run=not_run,
        exit_code=code,
        counts=counts,
        reason=reason,
        line=f"lossguard: {_word(facts, ordered, counts, code)} ({reason}) -> exit {code}",
    )


def _counts(rows: Sequence[Row], num_lost: int, num_not_run: int) -> dict[str, int]:
    counts = {status.lower().replace(" ", "_"): 0 for status in ORDER}
    for row in rows:
        counts[row.status.lower().replace(" ", "_")] += 1
    counts["lost"] += num_lost
    counts["not_run"] += num_not_run
    return counts


def _exit_code(audit: Audit, facts: Circumstances, rows: Sequence[Row], counts: Mapping[str, int]) -> int:
    if facts.exit_status not in (EXIT_OK, EXIT_RED):  # interrupted, broken, usage, nothing collected: pytest's word
        return facts.exit_status
    red = [row for row in rows if row.status in RED]
    if facts.advisory:
        red = [row for row in red if row.status in ("LOST", "NOT RUN")]
    is_to_judge = facts.asked_to_judge or (facts.has_baseline and facts.has_lost_sight)
    is_empty = is_to_judge and not rows and not facts.advisory
    if not red and not counts["lost"] and not facts.problems and not is_empty:
        return facts.exit_status
    return EXIT_USAGE if _is_usage_alone(audit, red, facts, counts) else EXIT_RED


def _is_usage_alone(audit: Audit, red: Sequence[Row], facts: Circumstances, counts: Mapping[str, int]) -> bool:
    """Whether everything that is red is red because a baseline or a plan does not fit."""
    usage = {row.node_id for row in red if row.message is not None and row.message.exit_code == EXIT_USAGE}
    others = [row for row in red if row.node_id not in usage]
    failed = {key[1] for key, record in audit.records.items() if record.is_failed}
    return bool(usage) and not others and not facts.problems and not counts["lost"] and failed <= usage


def _word(facts: Circumstances, rows: Sequence[Row], counts: Mapping[str, int], code: int) -> str:
    is_red = counts["lost"] > 0 or bool(facts.problems) or any(row.status in RED for row in rows)
    if facts.advisory:
        return "ADVISORY, NOT ENFORCED"
    if is_red or (not rows and code != EXIT_OK):
        return "FAILED"
    if facts.recording:
        return "RECORDED"
    return "PASSED" if rows else "NOTHING JUDGED"


def _reason(facts: Circumstances, rows: Sequence[Row], counts: Mapping[str, int]) -> str:
    inconclusive = counts["inconclusive"] + counts["error"]
    if facts.recording:
        parts = [f"recorded: {counts['recorded']}", f"kept: {counts['kept']}"]
    else:
        parts = [f"{counts['pass']} pass"] if counts["pass"] else []
    if inconclusive or counts["fail"] or counts["lost"]:
        parts += [f"{counts['fail']} fail", f"{inconclusive} inconclusive", f"{counts['lost']} lost"]
    parts += [f"{counts['xfail']} failed as expected"] if counts["xfail"] else []
    parts += [f"{counts['skipped']} skipped"] if counts["skipped"] else []
    parts += [f"{counts['not_run']} not run: {facts.stopped_early}"] if counts["not_run"] else []
    if not rows:
        parts += ["nothing judged" if facts.has_lost_sight else "no claim was collected"]
    parts += _out_of_sight(facts)
    parts += list(facts.problems)
    return ", ".join(parts)


def _out_of_sight(facts: Circumstances) -> list[str]:
    parts = [f"deselected claims: {facts.num_deselected}"] if facts.num_deselected else []
    if facts.skipped_modules:
        parts.append(f"modules skipped while collecting: {', '.join(facts.skipped_modules)}")
    return parts
