"""The audit and the decision as pure functions: whatever is missing or odd, exit 0 needs every claim to be fine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.pytest_plugin.audit import Audit, Heard, worst
from lossguard.pytest_plugin.decision import Circumstances, Decision, decide, make_rows
from lossguard.pytest_plugin.transport import ClaimMessage

STATUSES = ("PASS", "FAIL", "INCONCLUSIVE", "ERROR")
SESSION = Circumstances(exit_status=0)


def message(status: str, **more: object) -> ClaimMessage:
    return replace(ClaimMessage(claim="c", status=status, summary=status), **more)  # type: ignore[arg-type]


def heard(*statuses: str, **facts: bool) -> Heard:
    messages = {str(index): message(status) for index, status in enumerate(statuses)}
    return Heard(**{"is_finished": True, "num_reports": 3, **facts}, messages=messages)  # type: ignore[arg-type]


def decided(records: dict[str, Heard | None], facts: Circumstances = SESSION) -> Decision:
    """A session whose test t makes the claim t."""
    audit = Audit()
    audit.collected("", list(records), {name: name for name in records})
    audit.records = {("", name): record for name, record in records.items() if record is not None}
    return decide(audit, facts, make_rows(audit, facts))


def test_all_pass() -> None:
    found = decided({"a": heard("PASS"), "b": heard("PASS")})
    assert found.exit_code == 0
    assert found.line == "lossguard: PASSED (2 pass) -> exit 0"


@pytest.mark.parametrize(
    "record",
    [
        None,
        heard("FAIL"),
        heard("INCONCLUSIVE"),
        heard("ERROR"),
        heard("PASS", "FAIL"),
        heard("PASS", is_finished=False),
        heard("PASS", is_crashed=True),
        heard("PASS", is_failed=True),
        heard("PASS", is_xfailed=True),
        heard("PASS", is_xpassed=True),
        heard("INCONCLUSIVE", is_xfailed=True),
        heard("PASS", "FAIL", is_xfailed=True),
        heard("FAIL", "ERROR", is_xfailed=True),
        heard(is_xfailed=True),
        heard(is_skipped=True),
        heard(),
    ],
)
def test_one_that_is_not_fine_makes_the_session_red(record: Heard | None) -> None:
    assert decided({"a": heard("PASS"), "b": record}).exit_code == 1


@given(
    st.lists(st.sampled_from(STATUSES), max_size=2),
    st.fixed_dictionaries(
        {name: st.booleans() for name in ("is_finished", "is_crashed", "is_failed", "is_skipped", "is_xpassed")}
    ),
    st.sampled_from([0, 1, 5]),
)
def test_exit_0_needs_a_clean_pass(statuses: list[str], facts: dict[str, bool], status: int) -> None:
    found = decided({"a": heard(*statuses, **facts)}, Circumstances(exit_status=status))
    is_clean = facts["is_finished"] and not any(facts[name] for name in ("is_crashed", "is_failed", "is_xpassed"))
    is_green = bool(statuses) and set(statuses) == {"PASS"}
    assert (found.exit_code == 0) == (is_clean and is_green and status == 0)


@pytest.mark.parametrize("status", [2, 3, 4, 5])
def test_what_pytest_says_stays(status: int) -> None:
    assert decided({"a": heard("FAIL")}, Circumstances(exit_status=status)).exit_code == status


def test_advisory_excuses_verdicts_and_nothing_else() -> None:
    advisory = Circumstances(exit_status=0, advisory=True)
    assert decided({"a": heard("FAIL"), "b": heard("INCONCLUSIVE")}, advisory).exit_code == 0
    assert decided({"a": None}, advisory).exit_code == 1


def test_usage_alone_is_4() -> None:
    usage = Heard(is_finished=True, is_failed=True, messages={"": message("ERROR", exit_code=4)})
    broken = Heard(is_finished=True, is_failed=True, messages={"": message("ERROR", exit_code=3)})
    failed = Circumstances(exit_status=1)
    assert decided({"a": usage, "b": heard("PASS")}, failed).exit_code == 4
    assert decided({"a": usage, "b": heard("FAIL", is_failed=True)}, failed).exit_code == 1
    assert decided({"a": usage, "b": broken}, failed).exit_code == 1
    assert decided({"a": usage, "b": None}, failed).exit_code == 1


def test_where_every_worker_runs_every_test_each_must_report() -> None:
    audit = Audit(is_each=True)
    for worker in ("gw0", "gw1"):
        audit.collected(worker, ["t"], {"t": "t"})
    audit.records = {("gw0", "t"): heard("PASS")}
    assert decide(audit, SESSION, make_rows(audit, SESSION)).exit_code == 1
    audit.records[("gw1", "t")] = heard("PASS")
    assert decide(audit, SESSION, make_rows(audit, SESSION)).exit_code == 0
    audit.records[("gw1", "t")] = heard("FAIL")
    assert decide(audit, SESSION, make_rows(audit, SESSION)).exit_code == 1


def test_a_worker_that_says_it_sent_more_has_lost_something() -> None:
    audit = Audit()
    audit.collected("gw0", ["a"], {"a": "a"})
    audit.records = {("", "a"): replace(heard("PASS"), worker="gw0")}
    audit.worker_finished("gw0", {"num_verdicts": 1, "claims": {"a": "a"}})
    assert decide(audit, SESSION, make_rows(audit, SESSION)).exit_code == 0
    audit.worker_finished("gw0", {"num_verdicts": 2, "claims": {"a": "a"}})
    assert decide(audit, SESSION, make_rows(audit, SESSION)).exit_code == 1


def test_the_worst_message_counts() -> None:
    assert worst([message("PASS"), message("FAIL"), message("INCONCLUSIVE")]).status == "FAIL"
    assert worst([message("PASS"), message("ERROR")]).status == "ERROR"
