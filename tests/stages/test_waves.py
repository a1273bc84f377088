"""Waves hold every request once, the same ones whatever happened, with repeats apart and levels in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.exercise_plan import Exercise
from lossguard.records import Request, SamplingParams
from lossguard.stages.waves import waves_of


def requests(count: int, repeats: int = 1) -> list[Request]:
    sampling = SamplingParams(max_tokens=4)
    return [
        Request(id=f"r{at}#{repeat}", prompt_ids=(1,), sampling=sampling, set="s", cluster=f"r{at}", repeat_id=repeat)
        for at in range(count)
        for repeat in range(repeats)
    ]


def test_levels_take_a_share_each_and_the_highest_the_rest() -> None:
    made = waves_of(Exercise(concurrency=(1, 8, 32)), requests(240))
    assert [wave.pace.concurrency for wave in made if wave.pace] == [1, 8, 32]
    assert [len(wave.requests) for wave in made] == [24, 24, 192]
    assert all(wave.pace is not None and wave.pace.stagger_seconds > 0 for wave in made)


def test_lower_levels_are_spread_over_the_whole_list() -> None:
    first = waves_of(Exercise(concurrency=(1, 8)), requests(100))[0]
    positions = [int(item.id[1:].partition("#")[0]) for item in first.requests]
    assert positions[0] < 10
    assert positions[-1] >= 90


def test_repeats_are_waves_of_their_own() -> None:
    made = waves_of(Exercise(repeats=3), requests(5, repeats=3))
    assert [{item.repeat_id for item in wave.requests} for wave in made] == [{0}, {1}, {2}]
    assert all(wave.pace is None for wave in made)


@pytest.mark.parametrize("levels", [(), (4,), (1, 8), (1, 8, 32)])
@given(count=st.integers(1, 90), repeats=st.integers(1, 3), by_repeat=st.booleans())
def test_every_request_once(levels: tuple[int, ...], count: int, repeats: int, by_repeat: bool) -> None:  # noqa: FBT001
    asked = requests(count, repeats)
    made = waves_of(Exercise(concurrency=levels, repeats=3 if by_repeat else 0), asked)
    assert sorted(item.id for wave in made for item in wave.requests) == sorted(item.id for item in asked)
    assert all(wave.requests for wave in made)
