from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lossguard.checks.base import Arm, Thresholds
from lossguard.checks.calibrate import CalibrationInput, calibrate
from lossguard.checks.noise_scale import reported_differences
from lossguard.errors import UsageError
from lossguard.records import ForcedScores, require_finite
from tests.checks.conftest import LosslessRun


def noisy(scores: ForcedScores, noise_nats: float) -> ForcedScores:
    generator = np.random.default_rng(0)
    return replace(
        scores,
        top_logits=(scores.top_logits + generator.normal(0, noise_nats, scores.top_logits.shape)).astype(np.float32),
    )


def with_gap(arm: Arm, token: int, gap: float) -> Arm:
    gaps = arm.scores.gap.copy()
    gaps[token] = gap
    return replace(arm, scores=replace(arm.scores, gap=gaps))


def without_logprobs(arm: Arm) -> Arm:
    return replace(arm, outputs=[replace(output, logprobs=None) for output in arm.outputs])


def test_thresholds_of_a_bfloat16_engine(lossless: LosslessRun) -> None:
    limits = lossless.thresholds
    # reported logits carry noise of 0.05 each: the median of |N(0, 0.05 sqrt 2)|
    assert limits.q_nats == pytest.approx(0.6745 * 0.05 * np.sqrt(2), rel=0.1)
    assert limits.delta_max_nats == 0.0625
    assert limits.margin == pytest.approx(min(0.005, max(2 * limits.stock_rate, 0.001)))
    assert limits.event_nats == 1.0
    assert limits.near_tie_budget_nats == pytest.approx(max(limits.flip_cost_nats / 2, limits.recomposition_shift_nats))
    assert 0 < limits.recomposition_shift_nats < 0.8 * limits.flip_cost_nats
    assert limits.problems == {}
    assert len(limits.reasons) == 5
    require_finite(limits.to_json())
    assert Thresholds.from_json(limits.to_json()) == limits


def test_calibration_is_deterministic(lossless: LosslessRun) -> None:
    assert calibrate(lossless.calibration) == lossless.thresholds


def test_q_counts_only_positions_whose_two_best_tokens_are_reported(lossless: LosslessRun) -> None:
    stock = lossless.calibration.stock
    everything = len(reported_differences(stock))
    cut = []
    for output in stock.outputs[:40]:
        assert output.logprobs is not None
        cut.append(replace(output, logprobs=replace(output.logprobs, top_ids=tuple((10, 99) for _ in output.ids))))
    assert 0 < len(reported_differences(replace(stock, outputs=[*cut, *stock.outputs[40:]]))) < 0.6 * everything
    assert f"over {everything} positions" in lossless.thresholds.reasons[0]


def test_without_reported_logprobs_q_is_the_noise_between_scorings(lossless: LosslessRun) -> None:
    base = lossless.calibration
    given = replace(base, stock=without_logprobs(base.stock), rescored=noisy(base.stock.scores, 0.02))
    limits = calibrate(given)
    assert limits.q_nats == pytest.approx(2.576 * 0.02 * np.sqrt(2), rel=0.15)
    assert "another batch size" in limits.reasons[0]


def test_a_float32_engine_has_a_delta_of_scoring_noise_alone(lossless: LosslessRun) -> None:
    base = lossless.calibration
    calm = np.where(base.stock.scores.gap > 0, 0.0, base.stock.scores.gap).astype(np.float32)
    arm = replace(base.stock, scores=replace(base.stock.scores, gap=calm))
    again = replace(base.recomposed, scores=arm.scores)
    rescored = noisy(arm.scores, 1e-5)
    limits = calibrate(
        CalibrationInput(
            requests=base.requests, stock=arm, recomposed=again, rescored=rescored, logit_dtype="float32", seed=1
        )
    )
    assert limits.delta_max_nats == limits.q_nats < 1e-4
    assert limits.stock_rate == 0
    assert limits.margin == 0.001
    assert limits.near_tie_budget_nats == 1e-6  # there is no tie to flip that would matter
    assert limits.problems == {}


def test_without_any_source_of_q_calibration_refuses(lossless: LosslessRun) -> None:
    with pytest.raises(UsageError, match="LG0302"):
        calibrate(replace(lossless.calibration, logit_dtype="float32"))
    with pytest.raises(UsageError, match="LG0302"):
        calibrate(replace(lossless.calibration, stock=without_logprobs(lossless.calibration.stock)))


def test_a_second_scoring_of_other_tokens_is_refused(lossless: LosslessRun) -> None:
    scores = lossless.calibration.stock.scores
    other = replace(scores, served_id=scores.served_id + 1)
    with pytest.raises(UsageError, match="LG0303"):
        calibrate(replace(lossless.calibration, rescored=other, logit_dtype="float32"))


def test_too_few_positions_for_q_forbid_verdicts_that_rest_on_it(lossless: LosslessRun) -> None:
    stock = lossless.calibration.stock
    bare = without_logprobs(stock)
    few = replace(stock, outputs=[stock.outputs[0], *bare.outputs[1:]])
    scores = replace(few.scores, top_logits=few.scores.top_logits.copy())
    scores.top_logits[10:, 1] -= 2.0
    limits = calibrate(replace(lossless.calibration, stock=replace(few, scores=scores)))
    assert {"rate", "near-tie", "burst"} <= set(limits.problems)


@pytest.mark.parametrize("gap", [0.51, np.inf])
def test_a_large_calibration_gap_makes_event_inconclusive_and_lists_the_place(
    lossless: LosslessRun, gap: float
) -> None:
    token = int(lossless.calibration.stock.scores.offsets[7]) + 4
    stock = with_gap(lossless.calibration.stock, token, gap)
    limits = calibrate(replace(lossless.calibration, stock=stock))
    assert "c-0007 position 4" in limits.problems["event"]
    require_finite(limits.to_json())


def test_a_calibration_gap_of_half_a_nat_raises_the_threshold(lossless: LosslessRun) -> None:
    limits = calibrate(replace(lossless.calibration, stock=with_gap(lossless.calibration.stock, 30, 0.4)))
    assert limits.event_nats == pytest.approx(1.6)
    assert "event" not in limits.problems


def test_a_stock_that_shifts_with_its_batch_makes_near_tie_inconclusive(lossless: LosslessRun) -> None:
    scores = lossless.calibration.recomposed.scores
    gap = scores.top_logits[:, 0] - scores.top_logits[:, 1]
    flipped = np.where(gap <= 0.0625, gap, scores.gap).astype(np.float32)
    recomposed = replace(lossless.calibration.recomposed, scores=replace(scores, gap=flipped))
    limits = calibrate(replace(lossless.calibration, recomposed=recomposed))
    assert "batch compositions" in limits.problems["near-tie"]


def test_no_usable_calibration_token_is_an_error(lossless: LosslessRun) -> None:
    stock = lossless.calibration.stock
    blind = replace(stock, scores=replace(stock.scores, finite=np.zeros(stock.scores.num_tokens, dtype=np.bool_)))
    with pytest.raises(UsageError, match="LG0304"):
        calibrate(replace(lossless.calibration, stock=blind))
