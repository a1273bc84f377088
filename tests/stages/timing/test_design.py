"""The design on paper: orders, nonces, fixed lengths, strata."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.errors import UsageError
from lossguard.records import SamplingParams
from lossguard.stages.timing.design import RunPlan, fixed_length, make_nonces, plan_runs, sequence, stratum
from tests.stages.timing.campaigns import requests


def test_the_order_is_abba_and_never_abab() -> None:
    assert sequence(plan_runs(4, num_devices=2, order="abba", seed=1)) == "ABBAABBA"
    assert sequence(plan_runs(2, num_devices=1, order="abba", seed=1)) == "SCCSCSSC"


@given(num_pairs=st.integers(1, 30), seed=st.integers(0, 2**32))
def test_every_pair_exchanges_the_devices_in_either_order(num_pairs: int, seed: int) -> None:
    for order in ("abba", "random"):
        runs = plan_runs(num_pairs, num_devices=2, order=order, seed=seed)
        for first, second in zip(runs[::2], runs[1::2], strict=True):
            assert first.pair == second.pair
            assert first.devices == second.devices[::-1]
            assert first.devices[0] != first.devices[1]
        assert runs == plan_runs(num_pairs, num_devices=2, order=order, seed=seed)


def test_a_random_order_takes_both_and_is_not_alternating() -> None:
    places = sequence(plan_runs(64, num_devices=2, order="random", seed=3))[::2]
    assert 16 < places.count("A") < 48
    assert "AA" in places
    assert "BB" in places


def test_a_later_submission_continues_the_order() -> None:
    whole = plan_runs(6, num_devices=2, order="abba", seed=1)
    assert plan_runs(3, num_devices=2, order="abba", seed=1, first_pair=3) == whole[6:]


def test_nonces_have_one_length_and_never_repeat() -> None:
    timed = requests(20)
    runs = plan_runs(10, num_devices=2, order="abba", seed=1)
    nonces = make_nonces(timed, seed=1, num_tokens=8, num_runs=len(runs))
    served = [request for run in runs for request in nonces.for_run(timed, run, block="timed")]
    assert len({request.prompt_ids for request in served}) == len(served)
    assert {len(request.prompt_ids) for request in served} == {32}
    assert {request.id for request in served} == {request.id for request in timed}


def test_nonces_avoid_ids_that_end_replies() -> None:
    ending = tuple(replace(request, sampling=SamplingParams(max_tokens=4, stop_ids=(5, 6))) for request in requests(8))
    assert not {5, 6} & set(make_nonces(ending, seed=1, num_tokens=8, num_runs=4).pool)


def test_too_few_ids_for_nonces_are_refused() -> None:
    same = tuple(replace(request, prompt_ids=(7, 8, 7)) for request in requests(8))
    with pytest.raises(UsageError, match="LG1003"):
        make_nonces(same, seed=1, num_tokens=8, num_runs=40)


@pytest.mark.parametrize(
    ("supported", "expected"),
    [
        ({"ignore_eos", "min_tokens", "stop_ids"}, {"ignore_eos": True}),
        ({"min_tokens", "stop_ids"}, {"min_tokens": 9}),
        ({"stop_ids"}, {"stop_ids": ()}),
        (set(), {}),
    ],
)
def test_replies_get_a_fixed_length_where_engines_can(supported: set[str], expected: dict[str, object]) -> None:
    asked = SamplingParams(max_tokens=9, stop_ids=(2,))
    found, reason = fixed_length(asked, frozenset(supported))
    assert found == replace(asked, **expected)  # type: ignore[arg-type]
    assert ("end early" in reason) == (not expected)


def test_strata_are_coarse() -> None:
    (request,) = requests(1)
    assert stratum(request) == "toy/prompt-to-64/output-to-64"
    longer = replace(request, prompt_ids=tuple(range(5_000)))
    assert stratum(longer) == "toy/prompt-over-4096/output-to-64"


def test_a_run_names_its_file() -> None:
    assert RunPlan(pair=3, run=1, devices=(0, 1), turns=((0, 1),)).name == "pair-003-run-1"
