"""Samples of recorded comparisons keep each request's tokens, audit and text together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lossguard.checks.registry import builtin_checks
from lossguard.records import AuditedEvent, Verdict
from lossguard.selftest.detection import GATE, RED, RULES, Curve, red_rules
from lossguard.selftest.detection_table import detection_table
from lossguard.selftest.intervals import Share
from lossguard.selftest.recorded import Sampler, audited_throughout
from tests.checks.conftest import LosslessRun
from tests.checks.conftest import lossless as lossless
from tests.checks.simulated_arms import with_events


def test_a_sample_is_judged_like_a_run(lossless: LosslessRun) -> None:
    sample = Sampler(given=lossless.given).draw(220, 1, exchanges=True)
    results = {check.name: check.run(sample) for check in builtin_checks() if check.applies(sample.requests)}
    assert results["scores"].verdict is Verdict.PASS, results["scores"].summary
    assert results["structure"].verdict is Verdict.PASS, results["structure"].summary
    assert len({request.cluster for request in sample.requests}) == 220


def test_replies_and_scores_stay_together(lossless: LosslessRun) -> None:
    sample = Sampler(given=lossless.given).draw(50, 2, exchanges=False)
    for arm in (sample.candidate, sample.stock):
        ids = np.concatenate([output.ids for output in arm.outputs])
        assert np.array_equal(ids, arm.scores.served_id)
        assert arm.scores.request_ids == tuple(output.request_id for output in arm.outputs)


def test_exchanging_mixes_the_arms(lossless: LosslessRun) -> None:
    marked = [replace(output, text="candidate") for output in lossless.given.candidate.outputs]
    given = replace(lossless.given, candidate=replace(lossless.given.candidate, outputs=marked))
    mixed, plain = (Sampler(given=given).draw(400, 3, exchanges=exchanges) for exchanges in (True, False))
    ours = [output.text == "candidate" for output in mixed.candidate.outputs]
    theirs = [output.text == "candidate" for output in mixed.stock.outputs]
    assert 0.4 < np.mean(ours) < 0.6
    assert theirs == [not is_ours for is_ours in ours], "the other arm has the other reply"
    assert {output.text for output in plain.candidate.outputs} == {"candidate"}


def test_audits_follow_their_requests(lossless: LosslessRun) -> None:
    faulty = with_events(lossless.given.candidate, [(row, 3) for row in range(240)], explained=False)
    sample = Sampler(given=replace(lossless.given, candidate=faulty)).draw(30, 4, exchanges=False)
    assert sorted(event.request_id for event in sample.candidate.audit) == sorted(map(str, range(30)))
    assert GATE in red_rules(sample)


def test_open_events_are_decided_like_the_audited_ones(lossless: LosslessRun) -> None:
    arm = with_events(lossless.given.candidate, [(1, 3), (2, 3), (3, 3)], explained=False)
    cut = replace(arm, audit=arm.audit[:1])
    found = audited_throughout(cut, lossless.thresholds)
    assert [event.explained for event in found.audit] == [False, False, False]
    unknown: tuple[AuditedEvent, ...] = tuple(replace(event, explained=None) for event in arm.audit)
    assert audited_throughout(replace(arm, audit=unknown), lossless.thresholds).audit == unknown


def curve(system: str, rule: str, red: list[int]) -> Curve:
    return Curve(
        system=system,
        rule=rule,
        tokens=(500.0, 2000.0, 14000.0),
        shares=tuple(Share(count=count, number=20) for count in red),
    )


def test_detection_starts_where_it_stays() -> None:
    assert curve("a", GATE, [20, 20, 20]).tokens_to_detection == 500.0
    assert curve("a", GATE, [19, 3, 18]).tokens_to_detection == 14000.0
    assert curve("a", GATE, [20, 20, 17]).tokens_to_detection is None
    again = Curve.from_json(curve("a", GATE, [1, 2, 20]).to_json())
    assert again == curve("a", GATE, [1, 2, 20])


def test_the_table_tells_faults_from_controls() -> None:
    curves = [curve("bias", rule, [0, 20, 20]) for rule in RULES] + [curve("same", rule, [0, 0, 1]) for rule in RULES]
    text = detection_table(curves, ["same"])
    assert "| bias | 2,000 | 2,000 | 2,000 | 2,000 | 2,000 |" in text
    assert "| same | 5 % (1-24) |" in text
    assert RED in text


def test_many_controls_are_told_together_and_the_red_ones_alone() -> None:
    names = [f"control-{number}" for number in range(9)]
    curves = [curve(name, rule, [0, 0, int(name.endswith("3"))]) for name in names for rule in RULES]
    rows = [line for line in detection_table(curves, names).splitlines() if "%" in line and "control-" in line]
    text = detection_table(curves, names)
    assert "| all 9 | 1 % (0-3) |" in text
    assert len(rows) == 1
    assert rows[0].startswith("| control-3 | 5 % (1-24) |")
