from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lossguard.checks.structure import StructureCheck, violations
from lossguard.records import FinishReason, Request, ServedOutput, Verdict, require_finite
from tests.checks.conftest import LosslessRun
from tests.checks.simulated_arms import make_requests

STOP, LENGTH, ABORT = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT


def rules(
    ids: tuple[int, ...], finish: FinishReason, stop_reason: int | str | None = None, **sampling: Any
) -> set[str]:
    """Broken rules of one reply to a request of 4 tokens with stop id 2 and a vocabulary of 100."""
    from lossguard.checks.base import Arm

    base: Request = make_requests(1, max_tokens=4)[0]
    request = replace(base, sampling=replace(base.sampling, **sampling))
    output = ServedOutput(request_id=request.id, ids=ids, finish_reason=finish, stop_reason=stop_reason)
    arm = Arm(name="candidate", outputs=[output], scores=None)  # type: ignore[arg-type]
    return {item.rule for item in violations([request], arm, 100)}


@pytest.mark.parametrize(
    ("ids", "finish", "expected"),
    [
        ((5, 6, 7, 8), LENGTH, set()),
        ((5, 2), STOP, set()),
        ((2,), STOP, set()),
        ((5, 6, 7, 2), STOP, set()),
        ((5, 6), LENGTH, {"length"}),
        ((5, 6, 7, 8, 9), LENGTH, {"length", "max_tokens"}),
        ((5, 6), STOP, {"stop"}),
        ((5, 2, 7, 8), LENGTH, {"after-stop"}),
        ((5, 2, 2), STOP, {"after-stop"}),
        ((), STOP, {"empty"}),
        ((), LENGTH, {"empty", "length"}),
        ((5,), ABORT, {"abort"}),
        ((5, 100, 2), STOP, {"vocabulary"}),
        ((5, -1, 2), STOP, {"vocabulary"}),
    ],
)
def test_rules_of_a_plain_request(ids: tuple[int, ...], finish: FinishReason, expected: set[str]) -> None:
    assert rules(ids, finish) == expected


def test_a_stop_string_explains_a_stop_without_stop_id() -> None:
    assert rules((5, 6), STOP, "###", stop_strings=("###",)) == set()
    assert rules((5, 6), STOP, "###", stop_strings=("---",)) == {"stop", "stop-reason"}
    assert rules((5, 6), STOP, 6, stop_strings=("###",)) == {"stop"}


def test_min_tokens_binds_stops() -> None:
    assert rules((5, 2), STOP, min_tokens=3) == {"min_tokens"}
    assert rules((5, 6, 2), STOP, min_tokens=3) == set()


def test_tokens_after_a_stop_id_are_allowed_under_ignore_eos() -> None:
    assert rules((5, 2, 7, 8), LENGTH, ignore_eos=True) == set()


def test_a_lossless_run_passes_and_one_broken_reply_fails(lossless: LosslessRun) -> None:
    check = StructureCheck()
    assert check.run(lossless.given).verdict is Verdict.PASS
    assert check.run(lossless.given).summary == "240 stops checked"
    outputs = list(lossless.given.candidate.outputs)
    outputs[8] = replace(outputs[8], finish_reason=LENGTH)
    result = check.run(replace(lossless.given, candidate=replace(lossless.given.candidate, outputs=outputs)))
    assert result.verdict is Verdict.FAIL
    assert result.evidence["examples"][0]["request_id"] == "r-0008"
    assert "1 reply of 240" in result.summary
    require_finite(result.to_json())


def test_missing_and_misplaced_replies_are_no_pass(lossless: LosslessRun) -> None:
    arm = lossless.given.candidate
    missing = replace(arm, outputs=list(arm.outputs)[1:])
    assert StructureCheck().run(replace(lossless.given, candidate=missing)).verdict is Verdict.INCONCLUSIVE
    swapped = replace(arm, outputs=[arm.outputs[1], arm.outputs[0], *arm.outputs[2:]])
    assert StructureCheck().run(replace(lossless.given, candidate=swapped)).verdict is Verdict.FAIL
