"""The step of served logits is seen in differences of log-probabilities, whatever their offset."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.checks.base import Arm
from lossguard.checks.granularity import Granularity, reported_granularity
from lossguard.records import FinishReason, ReportedLogprobs, ServedOutput
from tests.checks.simulated_arms import make_scores


def seen(logits: np.ndarray) -> Granularity:
    """``logits`` [T, k] are what stock computed; it reports their log-probabilities in single precision."""
    ordered = -np.sort(-logits, axis=1)
    rows = (ordered - np.log(np.exp(ordered).sum(axis=1, keepdims=True)) - 0.7).astype(np.float32).astype(float)
    reported = ReportedLogprobs(
        served=tuple(rows[:, 0]),
        top_ids=tuple(tuple(range(rows.shape[1])) for _ in rows),
        top_logprobs=tuple(tuple(row) for row in rows),
    )
    output = ServedOutput(request_id="a", ids=(1,) * len(rows), finish_reason=FinishReason.LENGTH, logprobs=reported)
    count = len(rows)
    scores = make_scores(np.zeros(count), np.array([0, count]), ["a"], np.ones(count))
    return reported_granularity(Arm(name="stock", outputs=[output], scores=scores))


@given(seed=st.integers(0, 1000), power=st.integers(2, 6))
def test_the_step_of_rounded_logits(seed: int, power: int) -> None:
    exact = np.random.default_rng(seed).normal(size=(200, 5)) * 3 + 20
    step = 2.0**-power
    assert seen(np.round(exact / step) * step).step_nats == step


@pytest.mark.parametrize("count", [30, 400])
def test_exact_logits_have_none(count: int) -> None:
    assert seen(np.random.default_rng(3).normal(size=(count, 5)) * 3 + 20).step_nats == 0.0


@pytest.mark.parametrize(("positions", "tokens"), [(10, 5), (200, 2), (200, 1)])
def test_too_little_to_tell(positions: int, tokens: int) -> None:
    assert seen(np.round(np.random.default_rng(3).normal(size=(positions, tokens)) * 8) / 8).step_nats == 0.0
