from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from lossguard.checks.base import Arm
from lossguard.checks.event import EventCheck
from lossguard.checks.events import event_positions, excess_p, fail_is_certain, unaudited_events
from lossguard.records import CheckResult, Verdict, require_finite
from tests.checks.conftest import LosslessRun
from tests.checks.simulated_arms import thresholds, with_events


def places(number: int, start: int = 0) -> list[tuple[int, int]]:
    return [(start + index, 3) for index in range(number)]


def judge(lossless: LosslessRun, candidate: Arm, stock: Arm | None = None) -> CheckResult:
    given = replace(lossless.given, candidate=candidate, stock=stock or lossless.given.stock)
    result = EventCheck().run(given)
    require_finite(result.to_json())
    return result


def test_no_event_passes(lossless: LosslessRun) -> None:
    result = judge(lossless, lossless.given.candidate)
    assert result.verdict is Verdict.PASS
    assert result.summary == "0 requests with an unexplained event (stock 0); 0 positions audited, 0 explained"


def test_explained_events_pass(lossless: LosslessRun) -> None:
    result = judge(lossless, with_events(lossless.given.candidate, places(3), explained=True))
    assert result.verdict is Verdict.PASS
    assert result.summary == "0 requests with an unexplained event (stock 0); 3 positions audited, 3 explained"


@pytest.mark.parametrize(("number", "verdict"), [(1, "INCONCLUSIVE"), (6, "INCONCLUSIVE"), (7, "FAIL")])
def test_unexplained_events_fail_once_the_exact_test_rejects(lossless: LosslessRun, number: int, verdict: str) -> None:
    result = judge(lossless, with_events(lossless.given.candidate, places(number), explained=False))
    assert result.verdict.value == verdict
    if verdict == "INCONCLUSIVE":
        assert len(result.notes) == number
        assert (
            "position 3: served 10, best 10, gap 3 nats; stock's own decode there serves alone: 10" in result.notes[0]
        )


def test_as_many_as_stock_pass(lossless: LosslessRun) -> None:
    stock = with_events(lossless.given.stock, places(4, start=50), explained=False)
    candidate = lossless.given.candidate
    assert judge(lossless, with_events(candidate, places(4), explained=False), stock).verdict is Verdict.PASS
    assert judge(lossless, with_events(candidate, places(5), explained=False), stock).verdict is Verdict.INCONCLUSIVE


def test_without_an_audit_the_verdict_is_inconclusive(lossless: LosslessRun) -> None:
    result = judge(lossless, with_events(lossless.given.candidate, places(30), explained=None))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "30 requests not audited" in result.summary
    assert "not audited" in result.notes[0]


def test_events_that_the_audit_does_not_mention_count_as_unaudited(lossless: LosslessRun) -> None:
    candidate = replace(with_events(lossless.given.candidate, places(2), explained=True), audit=())
    assert judge(lossless, candidate).verdict is Verdict.INCONCLUSIVE


def test_audited_ones_alone_can_fail_beside_unaudited_ones(lossless: LosslessRun) -> None:
    candidate = with_events(lossless.given.candidate, places(7), explained=False)
    more = with_events(candidate, places(5, start=100), explained=None)
    assert judge(lossless, replace(more, audit=(*candidate.audit, *more.audit))).verdict is Verdict.FAIL


def test_unaudited_events_of_stock_never_help_a_pass_and_always_hinder_a_fail(lossless: LosslessRun) -> None:
    stock = with_events(lossless.given.stock, places(9, start=50), explained=None)
    one = with_events(lossless.given.candidate, places(1), explained=False)
    many = with_events(lossless.given.candidate, places(9), explained=False)
    assert judge(lossless, one, stock).verdict is Verdict.INCONCLUSIVE
    assert judge(lossless, many, stock).verdict is Verdict.INCONCLUSIVE


def test_a_request_is_explained_only_if_all_its_events_are(lossless: LosslessRun) -> None:
    arm = with_events(lossless.given.candidate, [(4, 2)], explained=True)
    both = with_events(arm, [(4, 9)], explained=False)
    result = judge(lossless, replace(both, audit=(*arm.audit, *both.audit)))
    assert result.evidence["candidate_unexplained_requests"] == 1
    assert "position 9" in result.notes[0]


def test_after_an_unexplained_position_the_rest_needs_no_audit(lossless: LosslessRun) -> None:
    arm = with_events(lossless.given.candidate, [(4, 2)], explained=False)
    both = with_events(arm, [(4, 9)], explained=None)
    result = judge(lossless, replace(both, audit=(*arm.audit, *both.audit)))
    assert result.evidence["candidate_unexplained_requests"] == 1
    assert result.evidence["candidate_unaudited_requests"] == 0


def test_an_id_beyond_the_vocabulary_is_an_event_with_json_evidence(lossless: LosslessRun) -> None:
    candidate = with_events(lossless.given.candidate, places(1), explained=False, gap=np.inf)
    result = judge(lossless, candidate)
    position = result.evidence["requests"][0]["positions"][0]
    assert position["gap_nats"] is None
    assert position["beyond_vocabulary"] is True
    assert "beyond the vocabulary" in result.notes[0]
    index, events = unaudited_events(candidate, lossless.thresholds)[0]
    assert index == 0
    require_finite(events[0].to_json())


def test_a_threshold_that_calibration_could_not_set_is_inconclusive(lossless: LosslessRun) -> None:
    limits = replace(lossless.thresholds, problems={"event": "stock itself leaves gaps: c-0007 position 4"})
    result = EventCheck().run(replace(lossless.given, thresholds=limits))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "c-0007 position 4" in result.summary


def test_event_positions_are_grouped_by_request_in_order(lossless: LosslessRun) -> None:
    arm = with_events(lossless.given.candidate, [(9, 5), (2, 7), (2, 1)], explained=None)
    found = event_positions(arm, thresholds())
    assert [(events.request_index, events.positions) for events in found] == [(2, (1, 7)), (9, (5,))]
    assert found[0].request_id == "r-0002"
    assert found[0].gaps_nats == (3.0, 3.0)


@pytest.mark.parametrize("num_stock", [0, 1, 2, 10])
def test_fail_is_certain_where_scipys_exact_test_rejects(num_stock: int) -> None:
    for number in range(num_stock, 60):
        p_value = stats.binomtest(number, number + num_stock, 0.5, alternative="greater").pvalue if number else 1.0
        assert excess_p(number, num_stock, 240) == pytest.approx(p_value)
        assert fail_is_certain(number, num_stock, 240) == (p_value < 0.01)
