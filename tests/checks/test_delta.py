from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.checks.delta import clipped_gap, delta_per_token, is_event, is_mismatch, is_scored, is_tie, ulp
from lossguard.errors import UsageError
from lossguard.records import ForcedScores
from tests.checks.simulated_arms import make_scores, thresholds


def scores_of(gap: list[float], best: list[float], second: list[float], finite: list[bool]) -> ForcedScores:
    number = len(gap)
    made = make_scores(np.array(gap), np.array([0, number]), ["r"], np.array(second))
    columns = {name: getattr(made, name) for name in ForcedScores.__dataclass_fields__}
    logits = np.array(best, dtype=np.float32)
    top = np.stack([logits, logits - np.array(second, dtype=np.float32)], axis=1)
    return ForcedScores(**{**columns, "best_logit": logits, "top_logits": top, "finite": np.array(finite)})


@pytest.mark.parametrize(
    ("logit", "expected"),
    [(4.0, 0.03125), (7.99, 0.03125), (8.0, 0.0625), (15.9, 0.0625), (16.0, 0.125), (-20.0, 0.125), (32.0, 0.25)],
)
def test_ulp_of_bfloat16(logit: float, expected: float) -> None:
    assert ulp(np.array([logit]), "bfloat16")[0] == expected


@given(st.floats(min_value=2.0**-14, max_value=60000, width=16))
def test_ulp_of_float16_is_numpys_spacing(logit: float) -> None:
    assert ulp(np.array([logit]), "float16")[0] == float(np.spacing(np.float16(logit)))


def test_ulp_forgives_nothing_for_float32_and_for_values_that_are_not_finite() -> None:
    assert ulp(np.array([12.0, 1e4]), "float32").tolist() == [0.0, 0.0]
    assert ulp(np.array([np.inf, np.nan]), "bfloat16").tolist() == [0.0, 0.0]


def test_ulp_refuses_an_unknown_dtype() -> None:
    with pytest.raises(UsageError, match="LG0301") as caught:
        ulp(np.array([1.0]), "bfloat61")
    assert "'bfloat16'" in str(caught.value)


def test_delta_is_the_larger_of_ulp_and_q() -> None:
    scores = scores_of([0, 0], [12.0, 20.0], [1, 1], [True, True])
    assert delta_per_token(scores, thresholds(q_nats=0.1)).tolist() == [0.1, 0.125]


def test_an_unknown_id_is_a_mismatch_and_an_event_and_costs_delta() -> None:
    scores = scores_of([np.inf, 0.0625, 0.07], [12.0] * 3, [1.0] * 3, [True] * 3)
    limits = thresholds()
    assert is_mismatch(scores, limits).tolist() == [True, False, True]
    assert is_event(scores, limits).tolist() == [True, False, False]
    assert clipped_gap(scores, limits).tolist() == pytest.approx([0.0625, 0.0625, 0.0625])


@pytest.mark.parametrize("gap", [np.nan, np.inf, 5.0])
def test_positions_that_are_not_finite_are_no_mismatch(gap: float) -> None:
    scores = scores_of([gap, gap], [12.0, np.nan], [0.0, 0.0], [False, True])
    limits = thresholds()
    assert not is_scored(scores).any()
    assert not is_mismatch(scores, limits).any()
    assert not is_event(scores, limits).any()
    assert not is_tie(scores, limits).any()
    assert clipped_gap(scores, limits).tolist() == [0.0, 0.0]


def test_ties_are_by_the_scorers_two_best() -> None:
    scores = scores_of([0, 0, 0], [12.0] * 3, [0.0, 0.0625, 0.07], [True] * 3)
    assert is_tie(scores, thresholds()).tolist() == [True, True, False]
