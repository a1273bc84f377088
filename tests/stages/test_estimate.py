"""The estimate: what was measured, times what the run will do."""

from __future__ import annotations

import pytest

from lossguard.records import Request, SamplingParams
from lossguard.stages.estimate import Speed, _estimate
from lossguard.stages.workspace import RunRequests


def make(count: int, prompt: int, tokens: int) -> tuple[Request, ...]:
    sampling = SamplingParams(max_tokens=tokens)
    return tuple(
        Request(id=f"r{i}", prompt_ids=(1,) * prompt, sampling=sampling, set="s", cluster=f"r{i}") for i in range(count)
    )


def test_batches_prompts_and_arms_are_counted() -> None:
    requests = RunRequests(calibration=make(8, 10, 16), test=make(20, 5, 16), sha256="0")
    speed = Speed(prompt_token=1.0, batch_step=100.0, batch_size=8, scored_token=1.0)
    estimate = _estimate(speed, requests, num_candidates=2)
    calibration, test = 8 * 10 + 1 * 16 * 100, 20 * 5 + 3 * 16 * 100
    assert estimate.serving_seconds == pytest.approx(2 * calibration + 3 * test)
    assert estimate.scoring_seconds == pytest.approx((8 * 10 + 2 * 8 * 16) + 2 * (20 * 5 + 2 * 20 * 16))
