"""Reply text against its ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lossguard.checks.base import Arm, has_evidence
from lossguard.checks.text import TEXT_LEVEL, TextCheck, text_difference
from lossguard.records import CheckResult, FinishReason, ServedOutput, Verdict, require_finite
from tests.checks.conftest import LosslessRun


def output_with(text: str | None, stop_reason: str | int | None = None) -> ServedOutput:
    return ServedOutput(request_id="r", ids=(1,), finish_reason=FinishReason.STOP, text=text, stop_reason=stop_reason)


@pytest.mark.parametrize(
    ("text", "decoded", "stop_reason"),
    [
        (" one two", "one two", None),
        ("one two", " one two", None),
        ("caf\ufffd", "caf", None),
        ("one ", "one STOP more", "STOP"),
        ("one STOP", "one STOP more", "STOP"),
        (None, "anything", None),
        ("anything", None, None),
    ],
)
def test_texts_that_fit(text: str | None, decoded: str | None, stop_reason: str | None) -> None:
    assert text_difference(output_with(text, stop_reason), decoded) is None


def test_a_stop_string_takes_the_space_before_it_along_only_if_the_server_does() -> None:
    assert text_difference(output_with("one ", "STOP"), "one STOP more") is None
    assert text_difference(output_with("one STOP", "STOP"), "one STOP more") is None
    assert text_difference(output_with("on", "STOP"), "one STOP more") is not None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one tw", "from character 6: text '', ids 'o'"),
        ("one two two", "from character 7: text ' two', ids ''"),
        ("One two", "from character 0: text 'One two', ids 'one two'"),
        ("", "from character 0: text '', ids 'one two'"),
    ],
)
def test_texts_that_do_not_fit_are_shown(text: str, shown: str) -> None:
    assert text_difference(output_with(text), "one two") == shown


def with_texts(arm: Arm, texts: dict[int, str] | None = None) -> Arm:
    outputs = [replace(output, text=(texts or {}).get(at, "one two")) for at, output in enumerate(arm.outputs)]
    return replace(arm, outputs=outputs, decoded=["one two"] * len(outputs))


def judged(lossless: LosslessRun, ours: dict[int, str], theirs: dict[int, str]) -> CheckResult:
    given = lossless.given
    result = TextCheck().run(
        replace(given, candidate=with_texts(given.candidate, ours), stock=with_texts(given.stock, theirs))
    )
    require_finite(result.to_json())
    return result


def test_verdicts(lossless: LosslessRun) -> None:
    assert judged(lossless, {}, {}).verdict is Verdict.PASS
    assert judged(lossless, {}, {4: "one"}).verdict is Verdict.PASS
    failed = judged(lossless, {4: "one"}, {})
    assert failed.verdict is Verdict.FAIL
    assert failed.evidence["examples"][0]["request_id"] == lossless.given.requests[4].id
    assert judged(lossless, {4: "one"}, {5: "two"}).verdict is Verdict.INCONCLUSIVE


def test_text_that_only_stock_has(lossless: LosslessRun) -> None:
    given = lossless.given
    silent = replace(given.candidate, decoded=[None] * len(given.candidate.outputs))
    given = replace(given, candidate=silent, stock=with_texts(given.stock))
    assert has_evidence(TextCheck(), given)
    assert TextCheck().run(given).verdict is Verdict.FAIL


def test_ids_that_were_not_detokenised_decide_nothing(lossless: LosslessRun) -> None:
    given = replace(lossless.given, candidate=replace(with_texts(lossless.given.candidate), decoded=()))
    assert TextCheck().run(given).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("side", ["candidate", "stock", "calibration"])
def test_one_reply_known_only_as_text_is_never_a_pass(lossless: LosslessRun, side: str) -> None:
    arm: Arm = getattr(lossless.given, side)
    outputs = list(arm.outputs)
    outputs[3] = replace(outputs[3], telemetry={TEXT_LEVEL: (1.0,)})
    changed: dict[str, Any] = {side: replace(arm, outputs=outputs)}
    given = replace(lossless.given, **changed)
    assert has_evidence(TextCheck(), given)
    assert TextCheck().run(given).verdict is Verdict.INCONCLUSIVE


def test_without_text_there_is_nothing_to_say(lossless: LosslessRun) -> None:
    assert not has_evidence(TextCheck(), lossless.given)
