from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.bucket_masks import Bucket, buckets, telemetry_column
from lossguard.checks.bucket_tests import Standardised, rate_p_values, standardised_p_value
from lossguard.checks.buckets import BucketsCheck
from lossguard.checks.clusters import position_of_tokens
from lossguard.checks.simulate import Simulation, simulate_pairs
from lossguard.records import Verdict, require_finite
from tests.checks.conftest import LosslessRun
from tests.checks.simulated_arms import ArmSpec, check_input, make_arm, make_requests, thresholds, with_events


def with_telemetry(arm: Arm, columns: dict[str, list[tuple[float, ...]]]) -> Arm:
    outputs = [
        replace(output, telemetry={name: values[index] for name, values in columns.items()})
        for index, output in enumerate(arm.outputs)
    ]
    return replace(arm, outputs=outputs)


def long_run(num_requests: int = 240, length: int = 100) -> CheckInput:
    generator = np.random.default_rng(1)
    requests = make_requests(num_requests, max_tokens=length)
    lengths, shares = np.full(num_requests, length), np.full(num_requests, 0.002)
    arms = [make_arm(generator, requests, ArmSpec(name=n, lengths=lengths, shares=shares)) for n in ("candidate", "s")]
    return check_input(requests, arms[0], arms[1], thresholds())


def by_name(found: list[Bucket]) -> dict[str, Bucket]:
    return {bucket.name: bucket for bucket in found}


def worse(arm: Arm, mask: np.ndarray, share: float) -> Arm:
    hit = mask & (np.random.default_rng(0).random(len(mask)) < share)
    return replace(arm, scores=replace(arm.scores, gap=np.where(hit, 0.3, arm.scores.gap).astype(np.float32)))


def test_positions_sets_and_finish_are_buckets_and_cover_the_tokens() -> None:
    given = long_run()
    found = by_name(buckets(given))
    positions = [name for name in found if name.startswith("output position")]
    assert positions == ["output position 0", "output position 1-16", "output position 17-64", "output position 65-256"]
    assert sum(found[name].candidate.sum() for name in positions) == given.candidate.scores.num_tokens
    assert found["output position 1-16"].candidate.sum() == 240 * 16
    assert found["finish token"].candidate.sum() == 240
    assert {"prompt set chat", "prompt set code", "prompt set math"} <= set(found)
    assert {"prompt length 0-128", "prompt length 129-512"} <= set(found)


def test_telemetry_columns_per_token_and_per_request() -> None:
    given = long_run(num_requests=4, length=5)
    candidate = with_telemetry(
        given.candidate,
        {
            "after_rejection": [(0, 1, 0, 0, 1)] * 4,
            "preempted": [(0, 0, 1, 0, 0), (0,) * 5, (1, 0, 0, 0, 0), (0,) * 5],
            "batch": [(1.0,), (8.0,), (9.0,), (200.0,)],
            "cached": [(12.0,), (0.0,), (0.0,), (0.0,)],
        },
    )
    found = by_name(buckets(replace(given, candidate=candidate)))
    assert found["after rejection"].candidate.sum() == 8
    assert found["after rejection"].stock is None
    assert found["after preemption"].candidate.tolist() == [
        *(False, False, True, True, True),
        *(False,) * 5,
        *(True,) * 5,
        *(False,) * 5,
    ]
    assert [name for name in found if name.startswith("batch")] == [
        "batch 1",
        "batch 2-8",
        "batch 9-32",
        "batch over 128",
    ]
    assert found["cache hit"].candidate[:5].all()
    assert telemetry_column(candidate, given.requests, "drafts") is None


def test_a_lossless_run_passes(lossless: LosslessRun) -> None:
    result = BucketsCheck().run(lossless.given)
    assert result.verdict is Verdict.PASS
    assert "smallest q=" in result.summary
    require_finite(result.to_json())


def test_a_fault_after_a_position_is_found_and_named() -> None:
    given = long_run()
    late = position_of_tokens(given.candidate.scores) >= 65
    result = BucketsCheck().run(replace(given, candidate=worse(given.candidate, late, 0.01)))
    assert result.verdict is Verdict.FAIL
    assert any(note.startswith("output position 65-256") for note in result.notes)


def test_under_the_floor_a_bucket_is_a_note() -> None:
    given = long_run()
    first = position_of_tokens(given.candidate.scores) == 0
    tokens = np.flatnonzero(first)[:15]
    mask = np.zeros(len(first), dtype=np.bool_)
    mask[tokens] = True
    result = BucketsCheck().run(replace(given, candidate=worse(given.candidate, mask, 1.0)))
    assert result.verdict is Verdict.PASS
    assert "under the floor of 20" in result.notes[0]


def test_five_unexplained_events_in_one_bucket_need_certainty() -> None:
    given = long_run()
    places = [(index, 90) for index in range(12)]
    result = BucketsCheck().run(replace(given, candidate=with_events(given.candidate, places, explained=False)))
    assert result.verdict is Verdict.FAIL
    assert any("requests with an unexplained event" in note for note in result.notes)
    unaudited = with_events(given.candidate, places, explained=None)
    assert BucketsCheck().run(replace(given, candidate=unaudited)).verdict is Verdict.PASS


def test_hard_tokens_after_a_rejection_are_no_fault_but_wrong_ones_are() -> None:
    """Drafts are rejected where the text is hard: the bucket must be held against stock at equal difficulty."""
    given = long_run()
    hard = (given.candidate.scores.top_logits[:, 0] - given.candidate.scores.top_logits[:, 1]) < 0.5
    rows = np.split(hard.astype(float), given.candidate.scores.offsets[1:-1])
    columns = {"after_rejection": [tuple(row.tolist()) for row in rows]}
    candidate = with_telemetry(given.candidate, columns)
    honest = BucketsCheck().run(replace(given, candidate=candidate))
    assert honest.verdict is Verdict.PASS
    test = next(row for row in honest.evidence["tests"] if row["bucket"] == "after rejection")
    rate_inside = test["num_candidate"] / hard.sum()
    assert rate_inside > 3 * 0.002  # and yet:
    assert test["p"] > 0.01
    faulty = BucketsCheck().run(replace(given, candidate=worse(candidate, hard, 0.05)))
    assert faulty.verdict is Verdict.FAIL
    assert any(note.startswith("after rejection") for note in faulty.notes)


@pytest.mark.parametrize("rho", [0.001, 0.02])
def test_rate_p_values_hold_their_level(rho: float) -> None:
    simulation = Simulation(rate=0.002, rho=rho, lengths=tuple(range(30, 80)), num_clusters=240)
    p_values = rate_p_values(simulate_pairs(simulation, 2000, 1))
    assert (p_values <= 0.05).mean() <= 0.06
    assert (p_values <= 0.001).mean() <= 0.003


def test_standardised_p_values_hold_their_level() -> None:
    generator = np.random.default_rng(0)
    rates = np.array([0.2, 0.05, 0.001])
    p_values = []
    for _ in range(400):
        tokens = generator.poisson([0.6, 0.8, 4.0], size=(240, 3)).astype(float)
        stock_tokens = generator.poisson([0.3, 0.8, 50.0], size=(240, 3)).astype(float)
        p_values.append(
            standardised_p_value(
                Standardised(
                    mismatches=generator.binomial(tokens.astype(int), rates).astype(float),
                    tokens=tokens,
                    stock_mismatches=generator.binomial(stock_tokens.astype(int), rates).astype(float),
                    stock_tokens=stock_tokens,
                )
            )
        )
    assert (np.array(p_values) <= 0.05).mean() <= 0.08
    assert (np.array(p_values) <= 0.5).mean() >= 0.3
