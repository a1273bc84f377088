"""The statistics, replayed on requests that two H200s served (``fixtures/two-gpu-campaign``)."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lossguard.records import Verdict
from lossguard.stages.timing.judging import SpeedCase, judge_speed, planned_looks
from lossguard.stages.timing.pair_times import MeasuredPair, to_pair_times
from lossguard.timing.base import CANDIDATE, STOCK, FloatArray, PairTimes
from lossguard.timing.effects import device_effect, interference, period_effect
from lossguard.timing.noise import describe_noise, noise_profile
from lossguard.timing_plan import Timing

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "two-gpu-campaign"
MANIFEST: Mapping[str, Any] = tomllib.loads(FOLDER.joinpath("MANIFEST.toml").read_text(encoding="utf-8"))
PHASES: Mapping[str, Any] = json.loads(FOLDER.joinpath("phases.json").read_text(encoding="utf-8"))
NUM_UNSETTLED_PAIRS = 2  # each arm's process had not yet come back to its GPU: see MANIFEST.toml
STEPS_BEFORE_TOKENS = 15  # prompt and nonce of 8 each; the last of them gives the first token
TOLERANCE = 0.003  # of a gain against the planted one


@cache
def rows() -> tuple[dict[str, str], ...]:
    data = gzip.decompress(FOLDER.joinpath("requests.csv.gz").read_bytes())
    return tuple(csv.DictReader(io.StringIO(data.decode())))


@cache
def pairs(phase: str) -> tuple[MeasuredPair, ...]:
    own = [row for row in rows() if row["phase"] == phase]
    shape = (max(int(row["pair"]) for row in own) + 1, 2, 2, max(int(row["index"]) for row in own) + 1)
    seconds, tokens, device = np.full(shape, np.nan), np.zeros(shape, np.int64), np.zeros(shape[:3], np.int64)
    for row in own:
        place = (int(row["pair"]), int(row["run"]), int(row["arm"]))
        seconds[*place, int(row["index"])] = (int(row["received_ns"]) - int(row["sent_ns"])) / 1e9
        tokens[*place, int(row["index"])] = int(row["num_tokens"])
        device[place] = int(row["device"])
    return tuple(
        MeasuredPair(
            pair=number,
            seconds=seconds[number],
            num_tokens=tokens[number],
            device=device[number],
            num_diverging=0,
            origin=phase,
        )
        for number in range(shape[0])
    )


def num_devices(phase: str) -> int:
    return len(PHASES[phase]["phase"]["devices"])


def times(phase: str, first_pair: int = 0) -> PairTimes:
    found = pairs(phase)[first_pair:]
    return to_pair_times(found, ("loop",) * found[0].seconds.shape[-1], num_devices(phase), metric="latency")


def judged(phase: str, profile: str, problems: tuple[str, ...] = ()) -> Any:
    timing = Timing(pairs=len(pairs(phase)), sequential=False)
    case = SpeedCase(
        timing=timing,
        strata=times(phase).strata,
        num_devices=num_devices(phase),
        pairs=pairs(phase),
        noise=noise_profile(times(profile)),
        looks=planned_looks(timing),
        problems=problems,
    )
    return judge_speed(case)


def planted_gain(phase: str, first_pair: int) -> float:
    steps = STEPS_BEFORE_TOKENS + int(PHASES[phase]["phase"]["tokens"])
    plain = times(phase, first_pair).seconds[:, :, CANDIDATE]
    return float(np.expm1(np.log1p(steps * PHASES[phase]["extra_seconds"] / plain).mean()))


def gains(phase: str, first_pair: int) -> tuple[float, float]:
    """(swapped, from the runs alone with stock on the first device)."""
    found = times(phase, first_pair)
    logs = np.log(found.seconds).mean(axis=-1)
    ratios: FloatArray = logs[..., STOCK] - logs[..., CANDIDATE]
    return float(np.expm1(ratios.mean())), float(np.expm1(ratios[found.device[..., STOCK] == 0].mean()))


def test_the_rows_are_the_recorded_ones() -> None:
    for name, digest in MANIFEST["sha256"].items():
        assert hashlib.sha256(FOLDER.joinpath(name).read_bytes()).hexdigest() == digest
    assert len(rows()) == MANIFEST["num_requests"]
    assert all(int(row["received_ns"]) > int(row["sent_ns"]) for row in rows())


def test_both_arms_served_the_same_ids() -> None:
    ids: dict[tuple[str, ...], set[str]] = {}
    for row in rows():
        key = tuple(row[name] for name in ("phase", "pair", "run", "index"))
        ids.setdefault(key, set()).add(row["ids"])
    assert all(len(found) == 1 for found in ids.values())


@pytest.mark.parametrize("phase", MANIFEST["noise"])
def test_noise_is_as_recorded(phase: str) -> None:
    recorded = MANIFEST["noise"][phase]
    found = describe_noise(noise_profile(times(phase)))
    assert {key: found[key] for key in recorded} == pytest.approx(recorded, rel=1e-6)


@pytest.mark.parametrize("phase", MANIFEST["verdict"])
def test_gain_bounds_effects_and_verdict_are_as_recorded(phase: str) -> None:
    recorded = dict(MANIFEST["verdict"][phase])
    found = judged(phase, recorded.pop("profile"))
    device, period = device_effect(times(phase)), period_effect(times(phase))
    assert found.check.verdict.value == recorded.pop("rule_verdict")
    assert {
        "gain": found.gain,
        "gain_lower_bound": found.gain_lower_bound,
        "gain_upper_bound": found.gain_upper_bound,
        "threshold": found.check.evidence["threshold"],
        "device": device.value,
        "device_lower": device.lower,
        "device_upper": device.upper,
        "period": period.value,
    } == pytest.approx(recorded, rel=1e-6)


@pytest.mark.parametrize("phase", ["p15", "p3"])
def test_the_planted_gain_is_found_even_while_the_arms_settle(phase: str) -> None:
    assert gains(phase, 0)[0] == pytest.approx(planted_gain(phase, 0), abs=TOLERANCE)


def test_the_swap_cancels_a_neighbour_that_slows_one_device() -> None:
    planted = planted_gain("nb3", NUM_UNSETTLED_PAIRS)
    swapped, unswapped = gains("nb3", NUM_UNSETTLED_PAIRS)
    assert swapped == pytest.approx(planted, abs=TOLERANCE)
    assert abs(unswapped - planted) > 5 * TOLERANCE
    assert device_effect(times("nb3", NUM_UNSETTLED_PAIRS)).excludes_zero


def test_the_neighbour_makes_the_verdict_inconclusive() -> None:
    flagged = sum(int(row["problems"]) for row in rows() if row["phase"] == "nb3")
    assert flagged == sum(row["phase"] == "nb3" for row in rows())
    assert judged("nb3", "aa1", ("a foreign process",)).check.verdict is Verdict.INCONCLUSIVE


def test_arms_beside_one_another_do_not_slow_each_other_by_a_tenth_of_a_percent() -> None:
    """Run 0 of a round serves both at once, run 1 each alone; in odd rounds the latter comes first."""
    seconds = times_of_rounds("alone")
    for arm in (STOCK, CANDIDATE):
        found = interference(seconds[:, 0, arm], seconds[:, 1, arm])
        assert -0.001 < found.lower < 0 < found.upper < 0.001


def times_of_rounds(phase: str) -> FloatArray:
    return np.stack([pair.seconds for pair in pairs(phase)])


def test_a_process_that_comes_back_to_its_gpu_is_faster_than_before() -> None:
    """Why arms that stay alive are settled before the first pair: 7 % in the middle of pair 1, on both devices."""
    stock = times("aa1").seconds[:, :, STOCK].mean(axis=-1)
    assert stock[0, 0] / stock[1, 1] > 1.07
    settled = stock[NUM_UNSETTLED_PAIRS:]
    assert settled.max() / settled.min() < 1.003
