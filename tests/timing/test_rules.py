"""The two rules: their bars, their three verdicts, and that better data never make them worse."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.errors import UsageError
from lossguard.records import Verdict
from lossguard.timing.base import PairTimes
from lossguard.timing.batch import judge_batch
from lossguard.timing.crossover import log_ratios
from lossguard.timing.noise import threshold_noise
from lossguard.timing.rules import Claim, decide, faster, judge, not_slower, promotion_threshold
from lossguard.timing.screening import screen
from lossguard.timing.strata import merge_strata
from tests.timing.campaigns import Made, make, profile

ORDER = [Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS]


def speed_up(times: PairTimes, log_gain: float) -> PairTimes:
    """The same campaign with a candidate faster by this much."""
    seconds = times.seconds.copy()
    seconds[:, :, 1] *= math.exp(-log_gain)
    return replace(times, seconds=seconds)


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [(0.05, Verdict.PASS), (0.0, Verdict.FAIL), (-0.05, Verdict.FAIL), (0.018, Verdict.INCONCLUSIVE)],
)
def test_faster_knows_three_verdicts(gain: float, verdict: Verdict) -> None:
    found = faster(make(Made(gain=gain)), profile())
    assert found.verdict is verdict
    assert found.reasons
    assert found.threshold == pytest.approx(0.01 + 2 * threshold_noise(profile()).value)


@pytest.mark.parametrize(
    ("gain", "margin", "verdict"),
    [
        (0.0, 0.01, Verdict.PASS),
        (-0.03, 0.01, Verdict.FAIL),
        (-0.01, 0.01, Verdict.INCONCLUSIVE),
        (-0.03, 0.06, Verdict.PASS),
        (0.0, 0.0, Verdict.INCONCLUSIVE),
    ],
)
def test_not_slower_knows_three_verdicts(gain: float, margin: float, verdict: Verdict) -> None:
    found = not_slower(make(Made(gain=gain, seed=2)), profile(), margin=margin)
    assert found.verdict is verdict
    assert found.threshold == -margin


def test_the_bar_is_the_larger_of_asked_and_noise() -> None:
    noise = np.array([0.001, 0.02])
    assert promotion_threshold(noise, asked=0.03, outputs_diverge=False).tolist() == [0.03, 0.05]
    assert promotion_threshold(noise, asked=0.0, outputs_diverge=True).tolist() == [0.032, pytest.approx(0.07)]


def test_one_device_is_reported_as_the_weaker_design() -> None:
    times = make(Made(gain=0.05))
    single = replace(times, design="one-device", device=np.zeros_like(times.device))
    assert any("weaker design" in reason for reason in faster(single, profile()).reasons)
    assert not any("weaker design" in reason for reason in faster(times, profile()).reasons)


def test_diverging_outputs_raise_the_bar_to_three_percent() -> None:
    times = make(Made(gain=0.03))
    assert faster(times, profile()).verdict is Verdict.PASS
    told = faster(times, profile(), outputs_diverge=True)
    assert told.verdict is not Verdict.PASS
    assert told.threshold > 0.03
    assert any("3 %" in reason for reason in told.reasons)


def test_fewer_tokens_are_seen_whatever_the_caller_says() -> None:
    times = make(Made(gain=0.5))
    tokens = times.num_tokens.copy()
    tokens[:, :, 1] = 12
    found = faster(replace(times, num_tokens=tokens), profile(), outputs_diverge=False)
    assert found.verdict is Verdict.FAIL  # per token it is slower
    assert found.evidence["outputs_diverge"] is True
    assert found.estimate.per_token


@pytest.mark.parametrize("pairs", [1, 2, 3])
def test_too_few_pairs_are_inconclusive_even_for_a_huge_gain(pairs: int) -> None:
    found = faster(make(Made(pairs=pairs, gain=0.5)), profile())
    assert found.verdict is Verdict.INCONCLUSIVE
    assert f"{pairs} complete swap pairs" in found.reasons[0]
    assert not_slower(make(Made(pairs=pairs, gain=-0.5)), profile()).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("noise", [None, profile(pairs=7)])
def test_a_missing_or_short_profile_is_inconclusive(noise: None) -> None:
    for found in (faster(make(Made(gain=0.5)), noise), not_slower(make(Made()), noise)):
        assert found.verdict is Verdict.INCONCLUSIVE
        assert "A/A" in found.reasons[0]
    if noise is None:
        assert math.isinf(found.estimate.log_lower)


@given(first=st.floats(-0.1, 0.1), more=st.floats(0.0, 0.1), rule=st.sampled_from(["faster", "not-slower"]))
def test_a_larger_gain_is_never_judged_worse(first: float, more: float, rule: Literal["faster", "not-slower"]) -> None:
    times = make(Made(pairs=4, requests=12))
    claim = Claim(rule=rule, amount=0.01)
    low, high = (judge(speed_up(times, gain), profile(), claim).verdict for gain in (first, first + more))
    assert ORDER.index(low) <= ORDER.index(high)


@given(asked=st.floats(0.0, 0.2), more=st.floats(0.0, 0.2))
def test_asking_for_more_is_never_easier(asked: float, more: float) -> None:
    times = make(Made(pairs=4, requests=12, gain=0.1))
    low, high = (faster(times, profile(), asked=value).verdict for value in (asked, asked + more))
    assert ORDER.index(high) <= ORDER.index(low)


@given(size=st.floats(1e-4, 0.05), more=st.floats(1.0, 10.0))
def test_a_noisier_stock_is_never_easier_to_beat(size: float, more: float) -> None:
    times = make(Made(pairs=6, requests=12, gain=0.05))
    low, high = (faster(times, profile(size * factor)).verdict is Verdict.PASS for factor in (1.0, more))
    assert low or not high


@given(low=st.floats(-0.2, 0.2), width=st.floats(0.0, 0.2), bar=st.floats(-0.2, 0.2))
def test_no_pair_of_bounds_passes_and_fails(low: float, width: float, bar: float) -> None:
    passes, fails = decide(np.array(low), np.array(low + width), np.array(bar))
    assert not (passes and fails)


@pytest.mark.parametrize(
    ("rule", "amount"), [("faster", -0.1), ("faster", math.nan), ("not-slower", 1.0), ("not-slower", -0.01)]
)
def test_senseless_amounts_are_refused(rule: Literal["faster", "not-slower"], amount: float) -> None:
    with pytest.raises(UsageError, match="LG1054"):
        Claim(rule=rule, amount=amount)


@pytest.mark.parametrize("rule", ["faster", "not-slower"])
def test_a_batch_judges_as_one_campaign_does(rule: Literal["faster", "not-slower"]) -> None:
    claim = Claim(rule=rule, amount=0.012)
    noise = profile(0.003)
    campaigns = [
        make(Made(gain=gain, losers=losers, heterogeneity=0.01, pairs=4, seed=seed))
        for seed, (gain, losers) in enumerate(
            [(0.06, 0), (0.03, 2), (0.0, 0), (0.05, 6), (-0.02, 0), (0.024, 0), (-0.01, 1)]
        )
    ]
    ratios = np.stack([log_ratios(times.seconds) for times in campaigns])
    strata = merge_strata(campaigns[0].strata).membership
    batch = judge_batch(ratios, np.broadcast_to(np.asarray(noise.pair_means), (len(campaigns), 8)), strata, claim)
    single = [judge(times, noise, claim) for times in campaigns]
    assert [found.verdict is Verdict.PASS for found in single] == batch.passes.tolist()
    assert [found.verdict is Verdict.FAIL for found in single] == batch.fails.tolist()
    assert len({found.verdict for found in single}) == 3
    assert [found.threshold for found in single] == pytest.approx(batch.threshold.tolist())


def test_screening_stops_only_what_is_slower() -> None:
    assert not screen(make(Made(pairs=1, gain=-0.05)), profile()).go_on
    assert screen(make(Made(pairs=1, gain=0.0)), profile()).go_on
    unknown = screen(make(Made(pairs=1, gain=-0.5)), None)
    assert unknown.go_on
    assert "not screened" in unknown.reason
