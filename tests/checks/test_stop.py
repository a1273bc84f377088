"""Stops that requests ask for: stop strings, minimum lengths, ignored stop ids; nothing that structure reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.stop import StopCheck
from lossguard.checks.structure import StructureCheck
from lossguard.records import CheckResult, FinishReason, ServedOutput, Verdict, require_finite
from tests.checks.conftest import LosslessRun
from tests.checks.simulated_arms import STOP_ID

STRINGS = {"stop_strings": ("END", "###")}
MINIMUM = {"min_tokens": 10}
IGNORED = {"ignore_eos": True}


def asking(run: CheckInput, **sampling: Any) -> CheckInput:
    """Every request asks so; texts without any stop string."""
    requests = [replace(request, sampling=replace(request.sampling, **sampling)) for request in run.requests]
    texts = [("one two", "one")] * len(requests) if "stop_strings" in sampling else []
    arms: dict[str, Any] = {side: replace(getattr(run, side), stop_texts=texts) for side in ("candidate", "stock")}
    return replace(run, requests=requests, **arms)


def with_output(run: CheckInput, index: int, side: str = "candidate", **changes: Any) -> CheckInput:
    """One reply of an arm changed."""
    arm: Arm = getattr(run, side)
    outputs: list[ServedOutput] = list(arm.outputs)
    outputs[index] = replace(outputs[index], **changes)
    changed: dict[str, Any] = {side: replace(arm, outputs=outputs)}
    return replace(run, **changed)


def with_texts(run: CheckInput, index: int, texts: tuple[str, str] | None, side: str = "candidate") -> CheckInput:
    arm: Arm = getattr(run, side)
    changed: dict[str, Any] = {
        side: replace(arm, stop_texts=[*arm.stop_texts[:index], texts, *arm.stop_texts[index + 1 :]])
    }
    return replace(run, **changed)


def result_of(run: CheckInput) -> CheckResult:
    result = StopCheck().run(run)
    require_finite(result.to_json())
    return result


def fails_by_stop_alone(run: CheckInput, shown: str) -> None:
    result = result_of(run)
    assert result.verdict is Verdict.FAIL, result
    assert shown in result.summary
    assert StructureCheck().run(run).verdict is Verdict.PASS, "what one check reports the other does not"


def test_it_applies_where_something_is_asked(lossless: LosslessRun) -> None:
    run = lossless.given
    assert not StopCheck().applies(run.requests)
    for sampling in (STRINGS, MINIMUM, IGNORED):
        assert StopCheck().applies(asking(run, **sampling).requests)
        assert StopCheck().applies(asking(run, temperature=0.7, **sampling).requests)


@pytest.mark.parametrize("sampling", [STRINGS, MINIMUM])
def test_stops_as_asked_pass(lossless: LosslessRun, sampling: dict[str, Any]) -> None:
    result = result_of(asking(lossless.given, **sampling))
    assert (result.verdict, result.summary) == (Verdict.PASS, "240 requests with stops of their own")


def full(run: CheckInput) -> CheckInput:
    """Both arms with replies that reach their limit."""
    arms: dict[str, Any] = {}
    for side in ("candidate", "stock"):
        arm: Arm = getattr(run, side)
        outputs = [replace(output, finish_reason=FinishReason.LENGTH, stop_reason=None) for output in arm.outputs]
        arms[side] = replace(arm, outputs=outputs)
    return replace(run, **arms)


def test_an_ignored_stop_id_must_not_stop(lossless: LosslessRun) -> None:
    run = full(asking(lossless.given, **IGNORED))
    assert result_of(run).verdict is Verdict.PASS
    stopped = with_output(run, 4, finish_reason=FinishReason.STOP, stop_reason=STOP_ID)
    result = result_of(stopped)
    assert result.verdict is Verdict.FAIL
    assert "although ignore_eos" in result.summary
    assert result_of(asking(lossless.given, **IGNORED)).verdict is Verdict.INCONCLUSIVE, "stock does it everywhere too"


def test_a_stop_string_ends_the_reply_with_the_token_that_completes_it(lossless: LosslessRun) -> None:
    run = asking(lossless.given, **STRINGS)
    ended = with_output(with_texts(run, 3, ("one END", "one E")), 3, stop_reason="END", ids=(5, 6))
    assert result_of(ended).verdict is Verdict.PASS
    fails_by_stop_alone(with_texts(run, 3, ("one END two", "one END t")), "goes on after the stop string 'END' (' t')")
    fails_by_stop_alone(with_texts(run, 3, ("a###b", "a###")), "'###'")


def test_a_stop_string_that_is_not_there_did_not_stop_the_reply(lossless: LosslessRun) -> None:
    run = with_output(asking(lossless.given, **STRINGS), 3, stop_reason="END", ids=(5, 6))
    fails_by_stop_alone(run, "stopped by 'END', which its ids do not contain")


@pytest.mark.parametrize("side", ["candidate", "stock"])
def test_ids_that_were_not_detokenised_decide_nothing(lossless: LosslessRun, side: str) -> None:
    run = asking(lossless.given, **STRINGS)
    assert result_of(with_texts(run, 3, None, side)).verdict is Verdict.INCONCLUSIVE
    bare: dict[str, Any] = {side: replace(getattr(run, side), stop_texts=())}
    assert "not detokenised" in result_of(replace(run, **bare)).summary


def test_a_stop_is_no_token_of_the_minimum(lossless: LosslessRun) -> None:
    run = asking(lossless.given, **MINIMUM)
    fails_by_stop_alone(with_output(run, 9, ids=(*[5] * 9, STOP_ID)), "stop id 2 is one of the 10 tokens of min_tokens")
    assert result_of(with_output(run, 9, ids=(*[5] * 10, STOP_ID))).verdict is Verdict.PASS
    shorter = with_output(run, 9, ids=(*[5] * 8, STOP_ID))
    assert result_of(shorter).verdict is Verdict.PASS, "structure reports this one"
    assert StructureCheck().run(shorter).verdict is Verdict.FAIL


def held_back(run: CheckInput, index: int, position: int, gap: float) -> CheckInput:
    """The target would stop at that position of the candidate's reply."""
    scores = run.candidate.scores
    at = int(scores.offsets[index]) + position
    best, gaps = scores.best_id.copy(), scores.gap.copy()
    best[at], gaps[at] = STOP_ID, gap
    return replace(run, candidate=replace(run.candidate, scores=replace(scores, best_id=best, gap=gaps)))


def test_a_minimum_that_lasts_too_long_fails(lossless: LosslessRun) -> None:
    run = asking(lossless.given, **MINIMUM)
    fails_by_stop_alone(held_back(run, 6, 20, 3.0), "goes on at position 20, 3.00 nats under a stop, min_tokens 10")
    assert result_of(held_back(run, 6, 20, 0.5)).verdict is Verdict.PASS
    assert result_of(held_back(run, 6, 9, 3.0)).verdict is Verdict.PASS, "within the minimum it must go on"
    plain = asking(lossless.given, **STRINGS)
    assert result_of(held_back(plain, 6, 20, 3.0)).verdict is Verdict.PASS, "without a minimum, the event check's"


def test_a_position_without_a_score_tells_nothing(lossless: LosslessRun) -> None:
    run = held_back(asking(lossless.given, **MINIMUM), 6, 20, np.nan)
    assert result_of(run).verdict is Verdict.PASS


def test_stock_that_does_the_same_leaves_it_open_unless_the_candidate_does_it_more(lossless: LosslessRun) -> None:
    def early(run: CheckInput, side: str, indices: Sequence[int]) -> CheckInput:
        for index in indices:
            run = with_output(run, index, side, ids=(*[5] * 9, STOP_ID))
        return run

    run = early(asking(lossless.given, **MINIMUM), "stock", [2])
    assert result_of(run).verdict is Verdict.PASS
    assert result_of(early(run, "candidate", [3])).verdict is Verdict.INCONCLUSIVE
    assert result_of(early(run, "candidate", range(12))).verdict is Verdict.FAIL
