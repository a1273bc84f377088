"""Vacuity, scores, the registry and the description of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lossguard.checks.base import Arm
from lossguard.checks.describe import describe_run, intraclass_correlation
from lossguard.checks.registry import builtin_checks
from lossguard.checks.scores import ScoresCheck
from lossguard.checks.simulate import Simulation, simulate_pairs
from lossguard.checks.vacuity import VacuityCheck
from lossguard.records import CheckResult, Verdict, require_finite
from tests.checks.conftest import LosslessRun


def with_column(arm: Arm, name: str, value: float) -> Arm:
    return replace(arm, outputs=[replace(output, telemetry={name: (value,)}) for output in arm.outputs])


def vacuity(lossless: LosslessRun, expect: dict[str, Any], candidate: Arm | None = None) -> CheckResult:
    given = replace(lossless.given, expect=expect, candidate=candidate or lossless.given.candidate)
    result = VacuityCheck().run(given)
    require_finite(result.to_json())
    return result


def test_nothing_expected_passes(lossless: LosslessRun) -> None:
    assert vacuity(lossless, {}).summary == "nothing expected"


@pytest.mark.parametrize(
    ("value", "wanted", "verdict"),
    [
        (3.0, True, Verdict.PASS),
        (0.0, True, Verdict.INCONCLUSIVE),
        (0.0, False, Verdict.PASS),
        (3.0, False, Verdict.INCONCLUSIVE),
        (3.0, 720, Verdict.PASS),
        (3.0, 721, Verdict.INCONCLUSIVE),
        (float("nan"), True, Verdict.INCONCLUSIVE),
        (float("inf"), True, Verdict.INCONCLUSIVE),
        (3.0, "yes", Verdict.INCONCLUSIVE),
    ],
)
def test_a_telemetry_column(lossless: LosslessRun, value: float, wanted: object, verdict: Verdict) -> None:
    candidate = with_column(lossless.given.candidate, "drafts", value)
    assert vacuity(lossless, {"drafts": wanted}, candidate).verdict is verdict


def test_a_missing_column_is_inconclusive(lossless: LosslessRun) -> None:
    result = vacuity(lossless, {"drafts": True})
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "no usable telemetry column 'drafts'" in result.summary


def test_diverging_needs_replies_other_than_stocks(lossless: LosslessRun) -> None:
    assert vacuity(lossless, {"diverging": True}).verdict is Verdict.PASS
    assert vacuity(lossless, {"diverging": True}, lossless.given.stock).verdict is Verdict.INCONCLUSIVE


def test_scores_that_are_finite_pass(lossless: LosslessRun) -> None:
    result = ScoresCheck().run(lossless.given)
    assert result.verdict is Verdict.PASS
    require_finite(result.to_json())


def blinded(arm: Arm, token: int) -> Arm:
    finite, gap = arm.scores.finite.copy(), arm.scores.gap.copy()
    finite[token], gap[token] = False, np.nan
    return replace(arm, scores=replace(arm.scores, finite=finite, gap=gap))


@pytest.mark.parametrize("side", ["candidate", "stock", "calibration"])
def test_one_logit_that_is_not_finite_is_inconclusive_wherever_it_is(lossless: LosslessRun, side: str) -> None:
    arm: Arm = getattr(lossless.given, side)
    broken = blinded(arm, int(arm.scores.offsets[6]) + 2)
    changes: dict[str, Any] = {side: broken}
    result = ScoresCheck().run(replace(lossless.given, **changes))
    assert result.verdict is Verdict.INCONCLUSIVE
    place = result.evidence["positions"][0]
    assert (place["request_id"][-4:], place["position"]) == ("0006", 2)


def test_scores_of_other_tokens_are_inconclusive(lossless: LosslessRun) -> None:
    scores = lossless.given.candidate.scores
    served = scores.served_id.copy()
    served[100] += 1
    other = replace(lossless.given.candidate, scores=replace(scores, served_id=served))
    assert "1 score of other tokens" in ScoresCheck().run(replace(lossless.given, candidate=other)).summary
    short = replace(lossless.given.candidate, outputs=list(lossless.given.candidate.outputs)[1:])
    assert ScoresCheck().run(replace(lossless.given, candidate=short)).verdict is Verdict.INCONCLUSIVE


def test_checks_come_in_the_order_of_the_table_and_say_what_they_cover() -> None:
    checks = builtin_checks()
    assert [check.name for check in checks] == [
        *("rate", "event", "structure", "stop", "parameters", "text", "near-tie", "burst", "buckets"),
        *("sampling", "support", "logprob", "usage", "vacuity", "scores"),
    ]
    assert all(check.covers and check.does_not_cover for check in checks)


def test_at_temperature_the_distribution_and_the_contract_are_checked(lossless: LosslessRun) -> None:
    plain, drawn = lossless.given.requests, ["sampling", "support"]
    assert [check.name for check in builtin_checks() if not check.applies(plain)] == ["stop", "parameters", *drawn]
    asked = {"min_tokens": 3, "presence_penalty": 1.0}
    requests = [replace(request, sampling=replace(request.sampling, **asked)) for request in plain]  # type: ignore[arg-type]
    assert [check.name for check in builtin_checks() if not check.applies(requests)] == drawn
    filtered = {"temperature": 0.8, "top_p": 0.9}
    sampled = [replace(request, sampling=replace(request.sampling, **filtered)) for request in requests]  # type: ignore[arg-type]
    contract = ["structure", "stop", "parameters", "text", *drawn, "logprob", "usage", "vacuity", "scores"]
    assert [check.name for check in builtin_checks() if check.applies(sampled)] == contract


def test_no_check_raises_for_arms_out_of_step(lossless: LosslessRun) -> None:
    arm = lossless.given.candidate
    broken = replace(lossless.given, candidate=replace(arm, outputs=list(arm.outputs)[:-1]))
    verdicts = {check.name: check.run(broken).verdict for check in builtin_checks()}
    assert len(verdicts) == 15
    assert verdicts.pop("vacuity") is Verdict.PASS
    assert set(verdicts.values()) == {Verdict.INCONCLUSIVE}


def test_every_check_is_deterministic_and_gives_json(lossless: LosslessRun) -> None:
    for check in builtin_checks():
        first = check.run(lossless.given)
        require_finite(first.to_json())
        assert first == check.run(lossless.given)


def test_the_description_of_a_run(lossless: LosslessRun) -> None:
    facts = describe_run(lossless.given)
    require_finite(facts)
    assert facts["num_requests"] == facts["num_clusters"] == 240
    assert facts["num_tokens_candidate"] == lossless.given.candidate.scores.num_tokens
    assert facts["deff"] >= 1.0
    assert 0 < facts["largest_request_share"] < 0.5
    assert 0 < facts["diverging_fraction"] <= 1
    same = describe_run(replace(lossless.given, candidate=lossless.given.stock))
    assert same["diverging_fraction"] == 0.0


def test_rho_is_found_again() -> None:
    sums = simulate_pairs(Simulation(rate=0.01, rho=0.02, lengths=(100, 200), num_clusters=20_000), 1, 3)
    assert intraclass_correlation(sums.candidate[0], sums.candidate_tokens[0]) == pytest.approx(0.02, rel=0.1)
