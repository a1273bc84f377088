"""Verdicts that no other test noticed being changed (docs/mutation.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.bucket_masks import buckets, telemetry_column
from lossguard.checks.buckets import MINIMUM_EVENTS, MINIMUM_MISMATCHES, BucketsCheck, BucketTest
from lossguard.checks.burst_finding import BurstInput, RequestCounts, find_bursts
from lossguard.checks.calibrate import calibrate, margin_of_rate
from lossguard.checks.clusters import request_sums
from lossguard.checks.delta import is_mismatch
from lossguard.checks.events import unaudited_events
from lossguard.checks.lossless_replicates import LosslessInput, LosslessResult, judge_replicates
from lossguard.checks.near_tie import NearTieCheck, tie_counts_of_arms
from lossguard.checks.near_tie_comparison import near_tie_comparison
from lossguard.checks.noise_scale import MINIMUM_POSITIONS, noise_scale, reported_differences, rescored_differences
from lossguard.checks.proportions import conditional_test, counts
from lossguard.checks.replicate_columns import BUCKETS, HITS, TOKENS, Drawn, columns_of_arms
from lossguard.checks.strict import StrictCheck
from lossguard.checks.structure import StructureCheck, violations
from lossguard.checks.table_text import finite, nats_per_token, percent, points
from lossguard.checks.vacuity import VacuityCheck
from lossguard.records import ReportedLogprobs, Verdict
from tests.checks.golden_runs import arms, calibration_input
from tests.checks.simulated_arms import STOP_ID, ArmSpec, check_input, make_arm, make_requests, thresholds, with_events


def same_twice(number: int) -> CheckInput:
    """Stock against itself."""
    given = arms(1, number=number)
    return replace(given, candidate=replace(given.stock, name="candidate"))


def test_replies_equal_to_stocks_pass_strict() -> None:
    result = StrictCheck().run(same_twice(5))
    assert (result.verdict, result.summary) == (Verdict.PASS, "5 replies equal to stock's")


@pytest.mark.parametrize("check", [StrictCheck(), VacuityCheck(), NearTieCheck()])
def test_a_problem_of_calibration_forbids_its_check(check: StrictCheck | VacuityCheck | NearTieCheck) -> None:
    given = same_twice(5)
    limits = replace(given.thresholds, problems={check.name: "calibration says no"})
    result = check.run(replace(given, thresholds=limits))
    assert (result.check, result.verdict, result.summary) == (check.name, Verdict.INCONCLUSIVE, "calibration says no")


@pytest.mark.parametrize(("number", "verdict"), [(199, Verdict.INCONCLUSIVE), (200, Verdict.PASS)])
def test_near_tie_may_pass_from_200_clusters_on(number: int, verdict: Verdict) -> None:
    assert NearTieCheck().run(same_twice(number)).verdict is verdict


def test_the_margin_is_twice_stocks_rate_between_its_limits() -> None:
    assert margin_of_rate([0.0, 0.0005, 0.001, 0.0025, 0.1]).tolist() == pytest.approx(
        [0.001, 0.001, 0.002, 0.005, 0.005]
    )


def with_near_positions(arm: Arm, number: int) -> Arm:
    """Top-2 gaps of 5 nats, but for the first positions, which have 0.5."""
    logits = arm.scores.top_logits.copy()
    logits[:, 1] = logits[:, 0] - 5
    logits[:number, 1] = logits[:number, 0] - 0.5
    return replace(arm, scores=replace(arm.scores, top_logits=logits))


@pytest.mark.parametrize("is_reported", [True, False])
def test_under_20_positions_the_noise_forbids_every_check_of_mismatches(is_reported: bool) -> None:  # noqa: FBT001
    given = calibration_input(1)
    for number, is_enough in ((MINIMUM_POSITIONS - 1, False), (MINIMUM_POSITIONS, True)):
        stock = with_near_positions(given.stock, number)
        if not is_reported:
            stock = replace(stock, outputs=[replace(output, logprobs=None) for output in stock.outputs])
        rescored = None if is_reported else stock.scores
        found = calibrate(replace(given, stock=stock, rescored=rescored))
        assert ({"rate", "near-tie", "burst"} <= set(found.problems)) is not is_enough


def test_20_reported_positions_are_enough_to_leave_a_second_scoring_aside() -> None:
    given = calibration_input(1)
    for number, source in ((MINIMUM_POSITIONS - 1, "99th percentile"), (MINIMUM_POSITIONS, "median")):
        stock = with_near_positions(given.stock, number)
        assert source in noise_scale(stock, stock.scores, "bfloat16").reason
    nothing = with_near_positions(given.stock, 0)
    assert noise_scale(nothing, nothing.scores, "float32").q_nats == 0


def near_positions(arm: Arm, indices: Sequence[int]) -> int:
    """Positions of these replies with a top-2 gap under 1 nat."""
    gap = arm.scores.top_logits[:, 0] - arm.scores.top_logits[:, 1]
    starts = arm.scores.offsets
    return sum(int((gap[starts[index] : starts[index + 1]] < 1).sum()) for index in indices)


def test_replies_whose_log_probabilities_are_missing_or_short_leave_the_others_counted() -> None:
    stock = calibration_input(1).stock
    whole = stock.outputs[1].logprobs
    assert whole is not None
    gap = stock.scores.top_logits[:, 0] - stock.scores.top_logits[:, 1]
    first = int(np.flatnonzero(gap[stock.scores.offsets[1] : stock.scores.offsets[2]] < 1)[0])
    numbers = tuple((math.nan, *row[1:]) for row in whole.top_logprobs)
    worse = tuple((row[0], -math.inf) for row in whole.top_logprobs)
    kinds = [
        None,
        ReportedLogprobs(served=(), top_ids=whole.top_ids, top_logprobs=whole.top_logprobs[:first]),
        ReportedLogprobs(served=(), top_ids=whole.top_ids[:first], top_logprobs=whole.top_logprobs),
        ReportedLogprobs(served=(), top_ids=whole.top_ids, top_logprobs=numbers),
        ReportedLogprobs(served=(), top_ids=whole.top_ids, top_logprobs=worse),
        ReportedLogprobs(served=(), top_ids=whole.top_ids, top_logprobs=tuple(row[:1] for row in whole.top_logprobs)),
    ]
    rest = len(reported_differences(stock)) - near_positions(stock, [1])
    for kind in kinds:
        outputs = list(stock.outputs)
        outputs[1] = replace(outputs[1], logprobs=kind)
        assert len(reported_differences(replace(stock, outputs=outputs))) == rest


def test_positions_whose_two_best_tokens_were_not_scored_again_are_left_out() -> None:
    scores = calibration_input(1).stock.scores
    ids = scores.top_ids.copy()
    ids[::2, 1] = 500
    near = (scores.top_logits[:, 0] - scores.top_logits[:, 1]) < 1
    assert len(rescored_differences(scores, replace(scores, top_ids=ids))) == int(near[1::2].sum())


def test_positions_without_a_score_do_not_raise_the_event_threshold() -> None:
    given = calibration_input(1)
    finite_ones = given.stock.scores.finite.copy()
    finite_ones[3] = False
    stock = replace(given.stock, scores=replace(given.stock.scores, finite=finite_ones))
    found, whole = calibrate(replace(given, stock=stock)), calibrate(given)
    assert (found.event_nats, found.largest_gap_nats) == (whole.event_nats, whole.largest_gap_nats)
    assert found.event_nats < 2


def test_flags_of_stock_in_other_prompts_count_for_stock() -> None:
    size = 1000
    candidate, stock, calibration = np.random.default_rng(1).binomial(200, 0.002, size=(3, size)).astype(np.float64)
    candidate[0], stock[1] = 20.0, 20.0
    tokens = np.full(size, 200.0)
    found = find_bursts(
        BurstInput(
            candidate=RequestCounts(mismatches=candidate, tokens=tokens),
            stock=RequestCounts(mismatches=stock, tokens=tokens),
            calibration=RequestCounts(mismatches=calibration, tokens=tokens),
            cluster=np.arange(size),
            seed=3,
        )
    )
    assert (int(found.counted.sum()), found.num_stock_counted, found.num_stock_prompts) == (1, 1, 1)
    assert found.sign_p == pytest.approx(0.75)


def test_id_0_is_a_token_like_any_other() -> None:
    given = same_twice(2)
    outputs = [replace(given.stock.outputs[0], ids=(0, 5, STOP_ID)), *given.stock.outputs[1:]]
    assert violations(given.requests, replace(given.stock, outputs=outputs), 1000) == []


def test_a_reply_that_stock_lacks_is_no_error_of_structure_and_vacuity() -> None:
    given = same_twice(3)
    short = replace(given, stock=replace(given.stock, outputs=given.stock.outputs[:2]), expect={"diverging": False})
    assert StructureCheck().run(short).verdict is Verdict.PASS
    assert VacuityCheck().run(short).verdict is Verdict.PASS


def test_the_only_token_of_a_reply_is_its_finish_token() -> None:
    spec = ArmSpec(name="stock", lengths=np.array([1, 3]), shares=np.zeros(2))
    requests = make_requests(2)
    arm = make_arm(np.random.default_rng(2), requests, spec)
    found = {bucket.name: bucket for bucket in buckets(check_input(requests, arm, arm, thresholds()))}
    assert found["finish token"].candidate.tolist() == [True, False, False, True]


def test_a_bucket_at_its_floor_can_fail() -> None:
    rate = BucketTest(bucket="b", kind="rate", p_value=0.0, num_candidate=20, num_stock=0, floor=20, excess=0.1)
    assert rate.floor == MINIMUM_MISMATCHES
    assert rate.can_fail(0.05)
    assert not replace(rate, num_candidate=19).can_fail(0.05)
    assert replace(rate, num_candidate=MINIMUM_EVENTS, floor=MINIMUM_EVENTS, excess=None).can_fail(0.05)


def test_events_of_a_bucket_are_held_against_the_requests_that_could_have_had_them() -> None:
    given = arms(1)
    outputs = [replace(output, telemetry={"cached": (1.0,)}) for output in given.candidate.outputs[:20]]
    candidate = with_events(given.candidate, [(index, 1) for index in range(6)], explained=False)
    candidate = replace(candidate, outputs=[*outputs, *given.candidate.outputs[20:]])
    tests = BucketsCheck().run(replace(given, candidate=candidate)).evidence["tests"]
    found = next(test for test in tests if (test["bucket"], test["kind"]) == ("cache hit", "event"))
    assert found["p"] == pytest.approx(float(conditional_test(counts(6, 20, 0, len(given.requests)))))


def test_replies_without_a_telemetry_column_are_unknown_and_not_an_error() -> None:
    given = arms(1, number=3)
    outputs = [replace(given.candidate.outputs[0], telemetry={"batch": (4.0,)}), *given.candidate.outputs[1:]]
    values = telemetry_column(replace(given.candidate, outputs=outputs), given.requests, "batch")
    assert values is not None
    first = len(outputs[0].ids)
    assert values[:first].tolist() == [4.0] * first
    assert np.isnan(values[first:]).all()


def test_an_empty_last_reply_has_a_sum_too() -> None:
    scores = arms(1, number=3).candidate.scores
    scores = replace(scores, offsets=np.append(scores.offsets, scores.offsets[-1]))
    assert request_sums(np.ones(scores.num_tokens), scores).tolist() == np.diff(scores.offsets).tolist()


def test_an_audit_starts_from_the_places_of_the_events() -> None:
    arm = with_events(arms(1, number=3).candidate, [(2, 4)], explained=None)
    ((index, (event,)),) = unaudited_events(arm, thresholds())
    place = int(arm.scores.offsets[2]) + 4
    assert (index, event.request_id, event.position) == (2, arm.outputs[2].request_id, 4)
    assert (event.served_id, event.best_id) == (arm.scores.served_id[place], arm.scores.best_id[place])


def test_numbers_that_are_not_finite_are_unknown_and_never_json() -> None:
    for value in (math.inf, -math.inf, math.nan):
        assert finite(value) is None
        assert {percent(value), points(value), nats_per_token(value)} == {"unknown"}
    assert nats_per_token(2e-6) == "+2.0e-06 nats/token"
    assert (nats_per_token(0.0), nats_per_token(1e-5)) == ("+0.00000 nats/token", "+0.00001 nats/token")


def replicates(stock: Arm, recomposed: Arm, num_requests: int = 200, **limits: float) -> LosslessResult:
    """Eight runs of so many requests."""
    return judge_replicates(
        LosslessInput(
            requests=make_requests(len(stock.outputs)),
            stock=stock,
            recomposed=recomposed,
            thresholds=thresholds(**limits),
            num_requests=num_requests,
            seed=3,
            num_replicates=8,
        )
    )


def test_runs_made_of_stock_alone_pass_from_200_clusters_on() -> None:
    stock = arms(1, number=40).stock
    found = replicates(stock, stock, margin=0.05)
    assert found.num_clusters == 200
    assert found.passed.all()
    assert not found.failed.any()


def stock_and(*, shares: Sequence[float], lower_share: float = 0.3) -> tuple[Arm, Arm]:
    """Stock without a mismatch on 40 prompts, and another service with these rates."""
    generator = np.random.default_rng(2)
    lengths = generator.integers(30, 60, size=40)
    clean, other = (
        make_arm(
            generator,
            make_requests(40),
            ArmSpec(name="stock", lengths=lengths, shares=np.array(rates), lower_share=share),
        )
        for rates, share in (([0.0] * 40, 0.3), (shares, lower_share))
    )
    return clean, other


def test_runs_whose_bursts_fall_to_the_candidate_fail_burst() -> None:
    stock, other = stock_and(shares=[0.9, *[0.0] * 39])
    found = replicates(stock, other, num_requests=40)
    assert found.failed_by_check["burst"].any()
    assert not found.failed_by_check["burst"].all()


def test_runs_pass_near_tie_by_the_upper_bound_and_fail_it_by_asymmetry_alone() -> None:
    stock, other = stock_and(shares=[0.0] * 40)
    assert replicates(stock, other, near_tie_budget_nats=1e-12).passed_by_check["near-tie"].sum() <= 1


def test_runs_without_any_bucket_pass_buckets() -> None:
    generator = np.random.default_rng(2)
    requests = tuple(replace(request, set="chat", prompt_ids=(3, 4)) for request in make_requests(40))
    spec = ArmSpec(name="stock", lengths=np.ones(40, dtype=np.int64), shares=np.full(40, 0.1))
    arm = make_arm(generator, requests, spec)
    given = LosslessInput(
        requests=requests,
        stock=arm,
        recomposed=arm,
        thresholds=thresholds(),
        num_requests=200,
        seed=3,
        num_replicates=3,
    )
    found = judge_replicates(given)
    assert found.passed_by_check["buckets"].tolist() == [True] * 3
    assert found.failed_by_check["buckets"].tolist() == [False] * 3


def drawn_once() -> tuple[Arm, Arm, Drawn]:
    """A service that is wrong at every eighth token, stock, and a run in which it is the candidate throughout."""
    stock, _ = stock_and(shares=[0.0] * 40)
    gap = stock.scores.gap.copy()
    gap[::8] = 0.4
    worse = replace(stock, name="worse", scores=replace(stock.scores, gap=gap))
    columns = columns_of_arms(make_requests(40), (worse, stock), thresholds(), 3)
    return worse, stock, Drawn(candidate=columns[:1], stock=columns[1:])


def test_drawn_columns_are_what_the_checks_sum() -> None:
    worse, stock, runs = drawn_once()
    given = check_input(make_requests(40), worse, stock, thresholds())
    ties, own = runs.ties(), tie_counts_of_arms(given)
    assert ties.candidate_lower[0].tolist() == own.candidate_lower.tolist()
    assert ties.candidate_ties[0].tolist() == own.candidate_ties.tolist()
    gaps = near_tie_comparison(given.requests, worse.scores, stock.scores, given.thresholds)
    assert runs.pair(HITS, TOKENS).candidate[0].tolist() == gaps.hits.candidate.tolist()
    found = buckets(given)
    assert runs.num_buckets == len(found) > 5
    wrong = is_mismatch(worse.scores, given.thresholds)
    for index, bucket in enumerate(found):
        pair = runs.pair(BUCKETS + 2 * index, BUCKETS + 2 * index + 1)
        assert pair.candidate.sum() == (wrong & bucket.candidate).sum()
        assert pair.candidate_tokens.sum() == bucket.candidate.sum()
