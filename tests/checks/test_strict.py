from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lossguard.checks.base import Arm, Thresholds
from lossguard.checks.registry import asked_checks
from lossguard.checks.strict import StrictCheck, strict_mismatches
from lossguard.records import FinishReason, Request, SamplingParams, ServedOutput, Verdict
from tests.checks.simulated_arms import check_input, make_scores, thresholds

REQUEST = Request(
    id="a", prompt_ids=(1, 2), sampling=SamplingParams(max_tokens=8, stop_ids=(2,)), set="chat", cluster="a"
)


def arm(name: str, ids: list[int], gaps: list[float], finish: FinishReason = FinishReason.LENGTH) -> Arm:
    gap = np.array(gaps, dtype=np.float64)
    offsets = np.array([0, len(ids)], dtype=np.int64)
    scores = make_scores(gap, offsets, ["a"], gap + 1.0)
    return Arm(
        name=name,
        outputs=[ServedOutput(request_id="a", ids=tuple(ids), finish_reason=finish)],
        scores=replace(scores, served_id=np.array(ids, dtype=np.int32)),
    )


def limits(dtype: str) -> Thresholds:
    return thresholds(logit_dtype=dtype, q_nats=1e-5, delta_max_nats=1e-5)


STOCK = arm("stock", [5, 6, 7, 8], [0.0, 0.5, 0.0, 0.0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("candidate", "position"),
    [
        (arm("candidate", [5, 6, 7, 8], [0.0, 0.5, 0.0, 0.0]), None),
        (arm("candidate", [5, 6, 9, 8], [0.0, 0.5, 0.2, 0.0]), 2),
        (arm("candidate", [5, 6, 7], [0.0, 0.5, 0.0]), 3),
        (arm("candidate", [5, 6, 7, 8, 9], [0.0, 0.5, 0.0, 0.0, 0.0]), 4),
        (arm("candidate", [5, 6, 7, 8], [0.0, 0.5, 0.0, 0.0], FinishReason.STOP), 4),
    ],
    ids=["equal, with stock's own mismatch", "another token", "shorter", "longer", "another end"],
)
def test_the_first_difference_is_found(candidate: Arm, position: int | None, dtype: str) -> None:
    found = strict_mismatches(candidate, STOCK, limits(dtype))
    assert [mismatch.position for mismatch in found] == ([] if position is None else [position])


@pytest.mark.parametrize(
    ("dtype", "later_gap", "position"),
    [("float32", 0.0, None), ("float32", 0.3, 3), ("bfloat16", 0.0, 2)],
    ids=["one tie", "a mismatch after the tie", "no ties on 16 bits"],
)
def test_a_tie_within_the_scorers_noise_is_one_token_on_float32_only(
    dtype: str, later_gap: float, position: int | None
) -> None:
    candidate = arm("candidate", [5, 6, 9, 4], [0.0, 0.5, 1e-6, later_gap])
    found = strict_mismatches(candidate, STOCK, limits(dtype))
    assert [mismatch.position for mismatch in found] == ([] if position is None else [position])


def test_an_id_beyond_the_vocabulary_is_a_mismatch_with_json_evidence() -> None:
    candidate = arm("candidate", [5, 6, 99999, 8], [0.0, 0.5, float("inf"), 0.0])
    result = StrictCheck().run(check_input([REQUEST], candidate, STOCK, limits("float32")))
    assert result.verdict is Verdict.FAIL
    assert result.evidence["mismatches"][0]["gap_nats"] is None


def test_strict_runs_only_where_it_is_asked_for() -> None:
    given = check_input([REQUEST], STOCK, STOCK, limits("float32"))
    assert asked_checks(given) == ()
    assert [check.name for check in asked_checks(replace(given, is_strict=True))] == ["strict"]


def test_replies_that_do_not_match_the_requests_are_inconclusive() -> None:
    given = check_input([REQUEST, REQUEST], STOCK, STOCK, limits("float32"))
    assert StrictCheck().run(given).verdict is Verdict.INCONCLUSIVE
