"""What was announced against what arrived: every collected test, every claim, every verdict.

Pure bookkeeping over values: no pytest session, no terminal, no disk. A report that never came is a finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lossguard.pytest_plugin.transport import CLAIM_PROPERTY, PROPERTY, ClaimMessage

if TYPE_CHECKING:
    import pytest

BADNESS = ("FAIL", "ERROR", "INCONCLUSIVE", "RECORDED", "KEPT", "PASS")


@dataclass(kw_only=True, slots=True)
class Heard:
    """What the reports said about one test in one place."""

    is_finished: bool = False
    is_failed: bool = False
    is_crashed: bool = False
    is_skipped: bool = False
    is_xfailed: bool = False
    is_xpassed: bool = False
    num_reports: int = 0
    skip_reason: str = ""
    worker: str = ""
    messages: dict[str, ClaimMessage] = field(default_factory=dict)
    problem: str = ""


@dataclass(kw_only=True, slots=True)
class Audit:
    """Everything that a controller hears during a session. ``is_each``: every worker runs every test."""

    is_each: bool = False
    expected: dict[tuple[str, str], None] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)
    records: dict[tuple[str, str], Heard] = field(default_factory=dict)
    num_announced: dict[str, int] = field(default_factory=dict)

    def collected(self, worker: str, node_ids: Sequence[str], claims: Mapping[str, str] | None = None) -> None:
        """A process will run (a part of) these tests."""
        for node_id in node_ids:
            self.expected[self._key(worker, node_id)] = None
        self.claims.update(claims or {})

    def reported(self, report: pytest.TestReport, worker: str) -> None:
        """A report arrived."""
        record = self.records.setdefault(self._key(worker, report.nodeid), Heard())
        record.worker = worker
        record.num_reports += 1
        expected_to_fail = hasattr(report, "wasxfail")
        record.is_failed |= report.failed and not expected_to_fail
        record.is_xfailed |= report.skipped and expected_to_fail
        record.is_xpassed |= (expected_to_fail and not report.skipped) or _is_strict_xpass(report)
        if report.skipped and not expected_to_fail:
            record.is_skipped, record.skip_reason = True, _skip_reason(report)
        if report.when not in ("setup", "call", "teardown"):  # made by the controller for a worker that died
            record.is_crashed, record.problem = True, str(report.longrepr)
        record.is_finished |= report.when == "teardown"
        self._read_properties(report, record)

    def worker_finished(self, worker: str, output: Mapping[str, Any]) -> None:
        """A worker has ended and said how many verdicts it sent, and which claims it had collected."""
        self.num_announced[worker] = int(output["num_verdicts"])
        self.claims.update(output["claims"])

    def _key(self, worker: str, node_id: str) -> tuple[str, str]:
        return (worker if self.is_each else "", node_id)

    def _read_properties(self, report: pytest.TestReport, record: Heard) -> None:
        for name, value in report.user_properties:
            if name == CLAIM_PROPERTY:
                self.claims[report.nodeid] = str(value)
            elif name == PROPERTY:
                try:
                    record.messages[str(value)] = ClaimMessage.from_text(value)
                except ValueError as error:
                    record.problem = f"the property {PROPERTY!r} cannot be read: {error}"

    def lost(self) -> list[str]:
        """Node ids of tests whose worker died, or that began or should have begun and never came to an end."""
        return [key[1] for key in self.expected if self._is_lost(key)]

    def _is_lost(self, key: tuple[str, str]) -> bool:
        record = self.records.get(key)
        return record is None or not record.is_finished

    def num_lost_verdicts(self) -> int:
        """Verdicts that workers say they sent and that did not arrive."""
        arrived: dict[str, int] = {}
        for record in self.records.values():
            arrived[record.worker] = arrived.get(record.worker, 0) + (1 if record.messages else 0)
        return sum(max(0, sent - arrived.get(worker, 0)) for worker, sent in self.num_announced.items())

    def of_claim(self, node_id: str) -> list[Heard | None]:
        """The records of a test: one, or one per worker where every worker runs it."""
        keys = [key for key in self.expected if key[1] == node_id] or [("", node_id)]
        return [self.records.get(key) for key in keys]


def worst(messages: Sequence[ClaimMessage]) -> ClaimMessage:
    """The message that counts: a later PASS never covers an earlier FAIL."""
    return min(messages, key=lambda message: BADNESS.index(message.status))


def _is_strict_xpass(report: pytest.TestReport) -> bool:
    return report.failed and str(report.longrepr).startswith("[XPASS(strict)]")


def _skip_reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)
