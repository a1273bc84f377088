"""Reported log-probabilities and counters: honest ones pass, each kind of wrong one fails, silence claims nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from lossguard.checks.base import Arm, CheckInput, has_evidence
from lossguard.checks.logprob import LogprobCheck
from lossguard.checks.reported import STOP_APPENDED, reported_scale
from lossguard.checks.usage import PROMPT_DIFFERS, UsageCheck
from lossguard.records import CheckResult, ReportedLogprobs, ServedOutput, Usage, Verdict, require_finite
from tests.checks.conftest import LosslessRun

NOISE = 0.01
Change = Callable[[ServedOutput], ServedOutput]


def reporting(arm: Arm, seed: int, change: Change = lambda output: output) -> Arm:
    """The arm with reports that are the forced ones up to noise, and counters that fit."""
    rng = np.random.default_rng(seed)
    outputs = []
    for index, output in enumerate(arm.outputs):
        start = int(arm.scores.offsets[index])
        forced = arm.scores.logprob[start : start + len(output.ids)].astype(float)
        served = tuple(float(min(value + rng.normal() * NOISE, 0.0)) for value in forced)
        top = tuple((max(value, -0.01),) for value in served)
        ids = tuple((token if value >= -0.01 else token + 1,) for token, value in zip(output.ids, served, strict=True))
        top = tuple(
            (value,) if row[0] == token else row for token, value, row in zip(output.ids, served, top, strict=True)
        )
        outputs.append(
            replace(
                output,
                logprobs=ReportedLogprobs(served=served, top_ids=ids, top_logprobs=top),
                usage=Usage(prompt_tokens=0, completion_tokens=len(output.ids)),
            )
        )
    return replace(arm, outputs=[change(output) for output in outputs])


def given_with(lossless: LosslessRun, candidate: Change, stock: Change = lambda output: output) -> CheckInput:
    given = lossless.given
    lengths = {request.id: len(request.prompt_ids) for request in given.requests}

    def counted(output: ServedOutput) -> ServedOutput:
        assert output.usage is not None
        return replace(output, usage=replace(output.usage, prompt_tokens=lengths[output.request_id]))

    calibration = reporting(given.calibration, 3)
    scale = reported_scale(calibration, given.calibration_requests)
    return replace(
        given,
        thresholds=replace(given.thresholds, logprob_nats=scale),
        candidate=reporting(given.candidate, 1, lambda output: candidate(counted(output))),
        stock=reporting(given.stock, 2, lambda output: stock(counted(output))),
        calibration=calibration,
    )


def same(output: ServedOutput) -> ServedOutput:
    return output


def with_logprobs(**changes: object) -> Change:
    def change(output: ServedOutput) -> ServedOutput:
        assert output.logprobs is not None
        served = output.logprobs.served
        values = {
            "zero": (0.0,) * len(served),
            "nan": (math.nan, *served[1:]),
            "short": served[:-1],
            "shifted": (served[0] - 1.0, *served[1:]),
            "positive": (0.5, *served[1:]),
        }
        return replace(output, logprobs=replace(output.logprobs, served=values[str(changes["kind"])]))

    return change


def logprob(given: CheckInput) -> CheckResult:
    result = LogprobCheck().run(given)
    require_finite(result.to_json())
    return result


def test_honest_reports_pass(lossless: LosslessRun) -> None:
    result = logprob(given_with(lossless, same))
    assert result.verdict is Verdict.PASS, result
    assert 3 * NOISE < result.evidence["limit_nats"] < 30 * NOISE


@pytest.mark.parametrize("kind", ["zero", "nan", "short", "shifted", "positive"])
def test_wrong_reports_fail_unless_stock_has_them_too(lossless: LosslessRun, kind: str) -> None:
    wrong = with_logprobs(kind=kind)
    assert logprob(given_with(lossless, wrong)).verdict is Verdict.FAIL
    assert logprob(given_with(lossless, wrong, wrong)).verdict is Verdict.INCONCLUSIVE
    assert logprob(given_with(lossless, same, wrong)).verdict is Verdict.PASS


def test_replies_that_lack_a_value_do_not_widen_the_limit(lossless: LosslessRun) -> None:
    """Without its first value every other one of a reply stands beside the wrong token."""
    given = lossless.given
    scores = given.calibration.scores
    uneven = (-np.random.default_rng(4).exponential(2.0, scores.num_tokens)).astype(np.float32)
    whole = reporting(replace(given.calibration, scores=replace(scores, logprob=uneven)), 3)

    def beheaded(output: ServedOutput) -> ServedOutput:
        assert output.logprobs is not None
        return replace(output, logprobs=replace(output.logprobs, served=output.logprobs.served[1:]))

    damaged = replace(whole, outputs=[beheaded(whole.outputs[0]), *whole.outputs[1:]])
    scale = reported_scale(damaged, given.calibration_requests)
    assert scale == pytest.approx(reported_scale(whole, given.calibration_requests), rel=0.2)


def test_one_wrong_report_is_enough_and_is_named(lossless: LosslessRun) -> None:
    name = lossless.given.requests[7].id
    wrong = with_logprobs(kind="shifted")
    result = logprob(given_with(lossless, lambda output: wrong(output) if output.request_id == name else output))
    assert result.verdict is Verdict.FAIL
    assert result.evidence["examples"][0]["request_id"] == name
    assert "position 0" in result.notes[0]


def test_missing_reports_fail_where_stock_has_them(lossless: LosslessRun) -> None:
    silent: Change = lambda output: replace(output, logprobs=None)  # noqa: E731
    assert logprob(given_with(lossless, silent)).verdict is Verdict.FAIL


def test_without_stocks_reports_on_calibration_nothing_is_decided(lossless: LosslessRun) -> None:
    given = given_with(lossless, same)
    bare = [replace(output, logprobs=None) for output in given.calibration.outputs]
    scale = reported_scale(replace(given.calibration, outputs=bare), given.calibration_requests)
    assert scale is None
    assert (
        logprob(replace(given, thresholds=replace(given.thresholds, logprob_nats=scale))).verdict
        is Verdict.INCONCLUSIVE
    )


def test_a_recorded_stock_that_keeps_no_reports_of_its_own_is_enough(lossless: LosslessRun) -> None:
    silent: Change = lambda output: replace(output, logprobs=None)  # noqa: E731
    assert logprob(given_with(lossless, same, silent)).verdict is Verdict.PASS
    assert logprob(given_with(lossless, with_logprobs(kind="zero"), silent)).verdict is Verdict.FAIL


def test_a_stop_token_that_was_put_back_has_no_report(lossless: LosslessRun) -> None:
    def stripped(output: ServedOutput) -> ServedOutput:
        assert output.logprobs is not None
        cut = ReportedLogprobs(
            served=output.logprobs.served[:-1],
            top_ids=output.logprobs.top_ids[:-1],
            top_logprobs=output.logprobs.top_logprobs[:-1],
        )
        assert output.usage is not None
        usage = replace(output.usage, completion_tokens=len(output.ids) - 1)
        return replace(output, logprobs=cut, usage=usage, telemetry={STOP_APPENDED: (1.0,)})

    given = given_with(lossless, stripped)
    assert logprob(given).verdict is Verdict.PASS
    assert UsageCheck().run(given).verdict is Verdict.PASS


def with_top(ids: tuple[int, ...], values: tuple[float, ...]) -> Change:
    def change(output: ServedOutput) -> ServedOutput:
        assert output.logprobs is not None
        reported = output.logprobs
        return replace(
            output,
            logprobs=replace(
                reported,
                top_ids=(ids, *reported.top_ids[1:]),
                top_logprobs=(values, *reported.top_logprobs[1:]),
            ),
        )

    return change


@pytest.mark.parametrize(
    ("ids", "values"),
    [((), ()), ((1, 2), (-2.0, -1.0)), ((1,), (math.nan,)), ((1, 2), (-1.0,)), ((10**6,), (-900.0,))],
)
def test_best_tokens_must_be_whole_in_order_and_above_the_served_one(
    lossless: LosslessRun, ids: tuple[int, ...], values: tuple[float, ...]
) -> None:
    assert logprob(given_with(lossless, with_top(ids, values))).verdict is Verdict.FAIL


def test_counters_that_fit_pass(lossless: LosslessRun) -> None:
    result = UsageCheck().run(given_with(lossless, same))
    assert result.verdict is Verdict.PASS, result


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"prompt_tokens": 3_000}, "prompt_tokens 3000"),
        ({"completion_tokens": 3_000}, "completion_tokens 3000"),
        ({"reasoning_tokens": 3_000}, "reasoning_tokens 3000"),
        ({"cached_tokens": 3_000}, "cached_tokens 3000"),
        ({"cached_tokens": -1}, "cached_tokens -1"),
    ],
)
def test_counters_that_do_not_fit_fail(lossless: LosslessRun, changes: dict[str, int], shown: str) -> None:
    name = lossless.given.requests[3].id

    def wrong(output: ServedOutput) -> ServedOutput:
        assert output.usage is not None
        return replace(output, usage=replace(output.usage, **changes)) if output.request_id == name else output

    result = UsageCheck().run(given_with(lossless, wrong))
    assert result.verdict is Verdict.FAIL
    assert shown in result.summary
    assert result.candidate == "1"


def test_another_prompt_fails(lossless: LosslessRun) -> None:
    other: Change = lambda output: replace(output, telemetry={PROMPT_DIFFERS: (1.0,)})  # noqa: E731
    result = UsageCheck().run(given_with(lossless, other))
    assert result.verdict is Verdict.FAIL
    assert "another prompt" in result.summary


def test_counters_that_only_stock_has_fail(lossless: LosslessRun) -> None:
    silent: Change = lambda output: replace(output, usage=None)  # noqa: E731
    assert UsageCheck().run(given_with(lossless, silent)).verdict is Verdict.FAIL


def test_where_nothing_is_reported_nothing_is_claimed(lossless: LosslessRun) -> None:
    given = lossless.given
    silent = [
        replace(arm, outputs=[replace(output, logprobs=None, usage=None, text=None) for output in arm.outputs])
        for arm in (given.candidate, given.stock)
    ]
    bare = replace(given, candidate=silent[0], stock=silent[1])
    for check in (LogprobCheck(), UsageCheck()):
        assert not has_evidence(check, bare)
        assert has_evidence(check, given_with(lossless, same))
