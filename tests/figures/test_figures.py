"""The numbers behind the pictures: they add up to the run, and say what the checks say."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lossguard.checks.base import CheckInput
from lossguard.checks.delta import is_mismatch
from lossguard.checks.power import detectable_excess
from lossguard.figures.collect import collect_figures
from lossguard.figures.event_points import LARGEST_SHOWN_NATS, MAX_POINTS
from lossguard.figures.power_curve import power_curve
from lossguard.records import require_finite
from tests.checks.simulated_arms import (
    ArmSpec,
    beta_shares,
    check_input,
    make_arm,
    make_requests,
    thresholds,
    with_events,
)

LENGTHS = (1, 3, 18, 70, 300)


def run(seed: int, places: list[tuple[int, int]], *, explained: bool | None = False, gap: float = 3.0) -> CheckInput:
    """Thirty requests of odd lengths; events of the candidate at the places."""
    generator = np.random.default_rng(seed)
    requests = make_requests(30)
    lengths = np.resize(np.array(LENGTHS), 30)
    arms = [
        make_arm(
            generator, requests, ArmSpec(name=name, lengths=lengths, shares=beta_shares(generator, 30, 0.01, 0.01))
        )
        for name in ("candidate", "stock")
    ]
    return check_input(requests, with_events(arms[0], places, explained=explained, gap=gap), arms[1], thresholds())


POWER = {"num_tokens": 14_000, "deff": 1.3, "detectable_excess_points": 1.0}


@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_every_token_is_counted_once(seed: int) -> None:
    given_run = run(seed, [(4, 10), (9, 200)])
    figures = collect_figures(given_run, POWER)
    for name, arm in (("candidate", given_run.candidate), ("stock", given_run.stock)):
        gaps = figures["gaps"][name]
        parts = [gaps[key] for key in ("num_best", "num_below", "num_above", "num_not_scored")]
        assert sum(parts) + sum(gaps["counts"]) == arm.scores.num_tokens == gaps["num_tokens"]
        rows = [row[name] for row in figures["positions"]]
        assert sum(row["num_tokens"] for row in rows) == arm.scores.num_tokens
        assert sum(row["num_mismatches"] for row in rows) == is_mismatch(arm.scores, given_run.thresholds).sum()
        for row in rows:
            assert row["lower_95"] <= (row["rate"] or 0.0) <= row["upper_95"]


def test_figures_are_json() -> None:
    figures = collect_figures(run(1, [(4, 10)]), POWER)
    require_finite(figures)
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures


@pytest.mark.parametrize(("explained", "letter"), [(True, "e"), (False, "u"), (None, "n")])
def test_an_event_keeps_its_place_and_what_the_audit_said(explained: bool | None, letter: str) -> None:  # noqa: FBT001
    points = collect_figures(run(2, [(4, 10), (9, 200)], explained=explained), POWER)["events"]["candidate"]
    assert points == {
        "num_events": 2,
        "status": letter * 2,
        "request_index": [4, 9],
        "position": [10, 200],
        "gap_nats": [3.0, 3.0],
    }


def test_an_id_that_does_not_exist_is_drawn_at_the_edge() -> None:
    points = collect_figures(run(2, [(4, 10)], gap=float("inf")), POWER)
    assert points["events"]["candidate"]["gap_nats"] == [LARGEST_SHOWN_NATS]
    assert points["gaps"]["candidate"]["num_above"] == 1


def test_of_many_events_the_audited_ones_are_kept() -> None:
    given_run = run(3, [(29, 299)])
    columns = given_run.candidate.scores
    gaps = np.full(columns.num_tokens, 2.0, dtype=np.float32)
    wide = {name: getattr(columns, name) for name in columns.__dataclass_fields__} | {"gap": gaps}
    many = type(given_run.candidate)(
        name="candidate",
        outputs=given_run.candidate.outputs,
        scores=type(columns)(**wide),
        audit=given_run.candidate.audit,
    )
    figures = collect_figures(check_input(given_run.requests, many, given_run.stock, thresholds()), POWER)
    points = figures["events"]["candidate"]
    assert points["num_events"] == columns.num_tokens < MAX_POINTS
    assert points["status"].count("u") == 1
    assert points["status"][-1] == "u"


@settings(max_examples=25)
@given(st.floats(0.0005, 0.02), st.floats(0.001, 0.005), st.floats(1.0, 3.0), st.integers(2_000, 200_000))
def test_the_curve_reaches_90_percent_at_the_printed_excess(rate: float, margin: float, deff: float, size: int) -> None:
    limits = thresholds(stock_rate=rate, margin=margin)
    printed = 100 * detectable_excess(rate, margin, size / deff)
    power = {"num_tokens": size, "deff": deff, "detectable_excess_points": printed}
    curve = power_curve(limits, power)
    assert np.interp(printed, curve["excess_points"], curve["fail_fraction"]) == pytest.approx(0.9, abs=0.02)
    assert curve["fail_fraction"] == sorted(curve["fail_fraction"])
    assert curve["pass_fraction"] == sorted(curve["pass_fraction"], reverse=True)
    both = np.add(curve["fail_fraction"], curve["pass_fraction"])
    assert both.max() <= 1 + 1e-6


def test_sampled_replies_have_no_figures() -> None:
    from dataclasses import replace

    given_run = run(1, [])
    sampled = [replace(request, sampling=replace(request.sampling, temperature=0.7)) for request in given_run.requests]
    assert collect_figures(replace(given_run, requests=sampled), POWER) == {}
