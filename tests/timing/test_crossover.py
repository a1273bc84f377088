"""The crossover cancels devices and periods exactly, and refuses what is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.errors import UsageError
from lossguard.timing.base import PairTimes
from lossguard.timing.crossover import check_pairs, divergence, judged_seconds, log_ratios, log_throughputs
from tests.timing.campaigns import Made, device_plan, make, with_seconds

effects = st.floats(-2.0, 2.0)


@given(gain=effects, device=effects, period=effects, pairs=st.integers(1, 5))
def test_devices_and_periods_cancel_exactly(gain: float, device: float, period: float, pairs: int) -> None:
    made = Made(pairs=pairs, requests=5, gain=gain, noise=0, launch=0, device=device, period=period)
    np.testing.assert_allclose(log_ratios(make(made).seconds), gain, atol=1e-12)


@given(device=effects, gain=effects)
def test_devices_do_not_cancel_without_the_exchange(device: float, gain: float) -> None:
    times = make(Made(pairs=2, requests=3, gain=gain, noise=0, launch=0, device=device))
    unswapped = times.seconds.copy()
    unswapped[:, 1] = unswapped[:, 0]
    found = log_ratios(unswapped).mean(axis=-1)
    np.testing.assert_allclose(found, gain + device * np.array([-1.0, 1.0]), atol=1e-12)


@given(scale=st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(scale: float) -> None:
    seconds = make(Made(pairs=3, requests=4)).seconds
    np.testing.assert_allclose(log_ratios(scale * seconds), log_ratios(seconds), atol=1e-12)
    np.testing.assert_allclose(log_throughputs(scale * seconds), log_throughputs(seconds), atol=1e-12)


def test_throughput_is_the_ratio_of_totals() -> None:
    seconds = np.array([[[[1.0, 9.0], [2.0, 3.0]], [[4.0, 6.0], [5.0, 3.0]]]])
    assert log_throughputs(seconds)[0] == pytest.approx((np.log(10 / 5) + np.log(10 / 8)) / 2)


def test_a_batch_is_its_campaigns() -> None:
    seconds = [make(Made(seed=seed)).seconds for seed in (1, 2)]
    batch = log_ratios(np.stack(seconds))
    np.testing.assert_array_equal(batch, np.stack([log_ratios(one) for one in seconds]))


def _broken(times: PairTimes, name: str) -> PairTimes:
    seconds, tokens = times.seconds.copy(), times.num_tokens.copy()
    match name:
        case "zero":
            seconds[0, 0, 0, 0] = 0.0
        case "nan":
            seconds[0, 0, 0, 0] = np.nan
        case "no token":
            tokens[0, 0, 1, 0] = 0
        case "strata":
            return replace(times, strata=times.strata[1:])
        case "empty":
            return replace(times, seconds=seconds[:0], num_tokens=tokens[:0], device=times.device[:0])
    return replace(times, seconds=seconds, num_tokens=tokens)


@pytest.mark.parametrize("name", ["zero", "nan", "no token", "strata", "empty"])
def test_broken_arrays_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="LG1050"):
        check_pairs(_broken(make(Made(pairs=2, requests=3)), name))


@pytest.mark.parametrize("plan", [[[0, 1], [0, 1]], [[0, 0], [0, 0]], [[0, 1], [1, 2]]])
def test_devices_that_were_not_exchanged_are_refused(plan: list[list[int]]) -> None:
    times = with_seconds(np.ones((2, 2, 2, 3)), np.stack([device_plan(1)[0], np.array(plan)]))
    with pytest.raises(UsageError, match=r"pairs \[1\].*") as caught:
        check_pairs(times)
    assert caught.value.code == "LG1051"


def test_one_device_needs_no_exchange() -> None:
    times = with_seconds(np.ones((2, 2, 2, 3)), np.zeros((2, 2, 2), dtype=np.int64))
    check_pairs(replace(times, design="one-device"))


def test_different_lengths_are_seen_and_divided_out() -> None:
    times = make(Made(pairs=4, requests=6, noise=0, launch=0, device=0))
    assert divergence(times)[0] is False
    shorter = times.num_tokens.copy()
    shorter[:, :, 1, 2] = 12
    seconds = times.seconds.copy()
    seconds[:, :, 1, 2] /= 2  # half the tokens in half the time: no gain
    cheat = replace(times, num_tokens=shorter, seconds=seconds)
    diverges, reason = divergence(cheat)
    assert diverges
    assert "1 of 6" in reason
    assert log_ratios(judged_seconds(cheat, per_token=False)).mean() > 0.1
    assert log_ratios(judged_seconds(cheat, per_token=True)).mean() == pytest.approx(0)
    first_token = replace(cheat, metric="ttft")
    np.testing.assert_array_equal(judged_seconds(first_token, per_token=True), cheat.seconds)


def test_a_reply_that_changes_between_pairs_diverges() -> None:
    times = make(Made(pairs=3, requests=4))
    tokens = times.num_tokens.copy()
    tokens[2, 1, 0, 3] += 1
    assert divergence(replace(times, num_tokens=tokens))[0]
