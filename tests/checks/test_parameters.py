"""Parameters: honoured ones pass, ignored, thin and skipped ones fail, and what was not replayed is no PASS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.parameters import ParametersCheck
from lossguard.records import CheckResult, Request, Verdict, require_finite
from tests.checks.conftest import LosslessRun

PENALTY = {"repetition_penalty": 1.3}
GRAMMAR = {"grammar": "regex:[ab]+"}


def asking(requests: Sequence[Request], **sampling: Any) -> list[Request]:
    return [replace(request, sampling=replace(request.sampling, **sampling)) for request in requests]


def replayed(arm: Arm, moved: Sequence[int] = (), plain_gap: float = 3.0) -> Arm:
    """The arm with columns of replayed parameters, which changed the target's choice at the tokens ``moved``."""
    scores = arm.scores
    gap, best = scores.gap.copy(), scores.best_id.copy()
    gap[list(moved)], best[list(moved)] = plain_gap, 77
    everywhere = np.ones(scores.num_tokens, dtype=np.bool_)
    return replace(arm, scores=replace(scores, plain_gap=gap, plain_best_id=best, replayed=everywhere))


def broken(arm: Arm, index: int, position: int, *, gap: float = 3.0, plain: float = 0.0) -> Arm:
    """The arm with one token that the parameters put far below the best."""
    scores = arm.scores
    assert scores.plain_gap is not None
    at = int(scores.offsets[index]) + position
    gaps, plain_gaps = scores.gap.copy(), scores.plain_gap.copy()
    gaps[at], plain_gaps[at] = gap, plain
    return replace(arm, scores=replace(scores, gap=gaps, plain_gap=plain_gaps))


def not_replayed(arm: Arm, index: int, position: int) -> Arm:
    """The arm with a request that is lost from a position on."""
    scores = arm.scores
    assert scores.replayed is not None
    flags = scores.replayed.copy()
    flags[int(scores.offsets[index]) + position : int(scores.offsets[index + 1])] = False
    return replace(arm, scores=replace(scores, replayed=flags))


@pytest.fixture
def asked(lossless: LosslessRun) -> CheckInput:
    """Every request with a penalty that changes a choice in both arms, and is honoured."""
    plain = lossless.given
    return replace(
        plain,
        requests=asking(plain.requests, **PENALTY),
        candidate=replayed(plain.candidate, (40, 50)),
        stock=replayed(plain.stock, (60,)),
    )


def result_of(run: CheckInput) -> CheckResult:
    result = ParametersCheck().run(run)
    require_finite(result.to_json())
    assert result == ParametersCheck().run(run)
    return result


def test_it_applies_where_something_is_asked(lossless: LosslessRun) -> None:
    requests = lossless.given.requests
    check = ParametersCheck()
    assert not check.applies(requests)
    assert not check.applies(asking(requests, min_tokens=3, stop_strings=("x",)))
    assert check.applies([*requests[1:], *asking(requests[:1], **GRAMMAR)])
    assert check.applies(asking(requests, temperature=1.0, **PENALTY))


def test_honoured_parameters_pass(asked: CheckInput) -> None:
    result = result_of(asked)
    assert (result.verdict, result.summary) == (Verdict.PASS, "repetition_penalty at every token")
    assert result.evidence["num_asking_requests"] == 240


def test_one_token_that_ignores_them_fails_and_is_named(asked: CheckInput) -> None:
    result = result_of(replace(asked, candidate=broken(asked.candidate, 7, 4)))
    assert result.verdict is Verdict.FAIL
    assert result.evidence["examples"][0]["request_id"] == asked.requests[7].id
    assert "position 4" in result.notes[0]
    assert "3.00 nats under the best with repetition_penalty, 0.00 without" in result.notes[0]


def test_a_token_that_cannot_be_served_is_told_apart(asked: CheckInput) -> None:
    run = replace(asked, candidate=broken(asked.candidate, 7, 4, gap=np.inf, plain=0.5))
    result = result_of(replace(run, requests=asking(asked.requests, **GRAMMAR)))
    assert result.verdict is Verdict.FAIL
    assert "cannot be served under repetition_penalty, grammar" in result.notes[0]


def test_a_token_that_is_wrong_either_way_is_not_the_parameters(asked: CheckInput) -> None:
    assert result_of(replace(asked, candidate=broken(asked.candidate, 7, 4, plain=2.5))).verdict is Verdict.PASS
    outside = broken(asked.candidate, 7, 4, gap=np.inf, plain=np.inf)  # an id that does not exist: structure
    assert result_of(replace(asked, candidate=outside)).verdict is Verdict.PASS


def test_stock_that_breaks_them_too_leaves_it_open_unless_the_candidate_does_so_more(asked: CheckInput) -> None:
    stock = broken(asked.stock, 3, 2)
    one = replace(asked, candidate=broken(asked.candidate, 7, 4), stock=stock)
    assert result_of(one).verdict is Verdict.INCONCLUSIVE
    assert "convention" in result_of(one).summary
    assert result_of(replace(asked, stock=stock)).verdict is Verdict.INCONCLUSIVE
    many = asked.candidate
    for index in range(12):
        many = broken(many, index, 4)
    assert result_of(replace(one, candidate=many)).verdict is Verdict.FAIL


@pytest.mark.parametrize("side", ["candidate", "stock"])
def test_a_scorer_that_replays_nothing_is_no_pass(asked: CheckInput, side: str) -> None:
    arm: Arm = getattr(asked, side)
    bare = replace(arm, scores=replace(arm.scores, plain_gap=None, plain_best_id=None, replayed=None))
    changed: dict[str, Any] = {side: bare}
    result = result_of(replace(asked, **changed))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.summary == "the scorer does not replay repetition_penalty"


@pytest.mark.parametrize("side", ["candidate", "stock"])
def test_a_grammar_that_could_not_be_replayed_says_what_to_install(asked: CheckInput, side: str) -> None:
    arm: Arm = getattr(asked, side)
    changed: dict[str, Any] = {side: not_replayed(arm, 5, 0), "requests": asking(asked.requests, **GRAMMAR)}
    result = result_of(replace(asked, **changed))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "pip install 'lossguard[grammar]'" in result.summary


def test_behind_a_token_that_left_the_grammar_nothing_more_is_asked(asked: CheckInput) -> None:
    lost = not_replayed(broken(asked.candidate, 5, 3, gap=np.inf), 5, 4)
    assert result_of(replace(asked, candidate=lost)).verdict is Verdict.FAIL
    before = not_replayed(asked.candidate, 5, 4)
    assert result_of(replace(asked, candidate=before)).verdict is Verdict.INCONCLUSIVE


def test_parameters_that_never_mattered_were_not_tested(asked: CheckInput) -> None:
    idle = replace(asked, candidate=replayed(asked.candidate), stock=replayed(asked.stock))
    result = result_of(idle)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "nothing was tested: repetition_penalty" in result.summary
    half = [*asking(asked.requests[:120], presence_penalty=1.0), *asked.requests[120:]]
    assert "nothing was tested" in result_of(replace(asked, requests=half)).summary


def test_requests_that_ask_for_nothing_are_left_alone(asked: CheckInput, lossless: LosslessRun) -> None:
    requests = [*asked.requests[:100], *lossless.given.requests[100:]]
    run = replace(asked, requests=requests)
    assert result_of(replace(run, candidate=broken(run.candidate, 150, 4))).verdict is Verdict.PASS
    assert result_of(replace(run, candidate=broken(run.candidate, 50, 4))).verdict is Verdict.FAIL


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 239), st.integers(0, 40), st.floats(0.0, 6.0), st.floats(0.0, 6.0))
def test_a_token_breaks_a_parameter_by_the_event_threshold_and_not_less(
    lossless: LosslessRun, index: int, position: int, gap: float, plain: float
) -> None:
    run = lossless.given
    run = replace(
        run,
        requests=asking(run.requests, **PENALTY),
        candidate=broken(replayed(run.candidate, (40,)), index, position, gap=gap, plain=plain),
        stock=replayed(run.stock, (60,)),
    )
    gaps = run.candidate.scores
    assert gaps.plain_gap is not None
    at = int(gaps.offsets[index]) + position
    is_broken = float(gaps.gap[at]) - float(gaps.plain_gap[at]) > run.thresholds.event_nats
    assert ParametersCheck().run(run).verdict is (Verdict.FAIL if is_broken else Verdict.PASS)
