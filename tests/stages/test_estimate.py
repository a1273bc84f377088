"""The estimate: what was measured, times what the run will do."""

from __future__ import annotations

import pytest

from lossguard.stages.estimate import Speed, cost_of


def test_batches_prompts_and_arms_are_counted() -> None:
    speed = Speed(prompt_token=1.0, batch_step=100.0, batch_size=8, scored_token=1.0)
    estimate = cost_of(speed, (8, 80, 8 * 16), (20, 100, 20 * 16), num_candidates=2)
    calibration, test = 8 * 10 + 1 * 16 * 100, 20 * 5 + 3 * 16 * 100
    assert estimate.serving_seconds == pytest.approx(2 * calibration + 3 * test)
    assert estimate.scoring_seconds == pytest.approx((8 * 10 + 2 * 8 * 16) + 2 * (20 * 5 + 2 * 20 * 16))
