"""The diagnosis names a family where a pattern is plain, and says unknown elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.registry import builtin_checks
from lossguard.diagnosis.diagnose import diagnose
from lossguard.diagnosis.families import Family
from lossguard.records import AuditedEvent, Diagnosis, ForcedScores, require_finite
from tests.checks.simulated_arms import (
    STOP_ID,
    VOCAB_SIZE,
    ArmSpec,
    beta_shares,
    check_input,
    make_arm,
    make_requests,
    thresholds,
    with_events,
)

NUM_REQUESTS, LENGTH = 240, 60


@pytest.fixture(scope="module")
def lossless() -> CheckInput:
    """Two arms of 240 replies of 60 tokens, with the mismatches of a 16-bit stack."""
    generator = np.random.default_rng(3)
    requests = make_requests(NUM_REQUESTS)
    lengths = np.full(NUM_REQUESTS, LENGTH)
    shares = beta_shares(generator, NUM_REQUESTS, 0.002, 0.002)
    arms = [
        make_arm(generator, requests, ArmSpec(name=name, lengths=lengths, shares=shares))
        for name in ("candidate", "stock")
    ]
    return check_input(requests, arms[0], arms[1], thresholds())


def diagnosed(given: CheckInput) -> Diagnosis:
    results = [check.run(given) for check in builtin_checks()]
    found = diagnose(given, results)
    require_finite(found.to_json())
    return found


def faulty(given: CheckInput, places: Sequence[tuple[int, int]], ids: Sequence[int] = ()) -> CheckInput:
    """Unexplained events at (request, position); ``ids`` are what they serve, by default ids without a pattern."""
    candidate = with_events(given.candidate, places, explained=False)
    served = candidate.scores.served_id.copy()
    chosen = ids or np.random.default_rng(1).permutation(np.arange(20, VOCAB_SIZE))[: len(places)].tolist()
    for (index, position), token in zip(places, chosen, strict=True):
        served[candidate.scores.offsets[index] + position] = token
    return replace(given, candidate=replace(candidate, scores=replace(candidate.scores, served_id=served)))


def with_telemetry(given: CheckInput, name: str, rows: Sequence[tuple[float, ...]]) -> CheckInput:
    outputs = [
        replace(output, telemetry={**output.telemetry, name: row})
        for output, row in zip(given.candidate.outputs, rows, strict=True)
    ]
    return replace(given, candidate=replace(given.candidate, outputs=outputs))


def spread(number: int, low: int = 0, high: int = LENGTH - 1) -> list[tuple[int, int]]:
    """That many requests, with positions spread evenly over a range."""
    return [(index * 7 % NUM_REQUESTS, low + (index * 5) % (high - low)) for index in range(number)]


def test_events_behind_a_position_are_a_threshold_with_the_counts_that_say_so(lossless: CheckInput) -> None:
    found = diagnosed(faulty(lossless, spread(30, low=40)))
    assert found.family == Family.POSITION_THRESHOLD
    assert found.sentence == (
        "all 30 large-margin tokens lie after position 39 (0 of 9,600 tokens before, 30 of 4,800 after); likely "
        "family: position threshold (long-context state, rotary cache, or an injected bias)"
    )
    assert found.scores_nats[Family.POSITION_THRESHOLD.value] > 20
    assert found.scores_nats[Family.BIAS.value] == 0


def test_events_without_a_common_place_or_id_are_unknown(lossless: CheckInput) -> None:
    found = diagnosed(faulty(lossless, spread(30)))
    assert found.family == Family.UNKNOWN
    assert "30 large-margin tokens without a common place or id" in found.sentence
    assert found.causes == ""


def test_a_few_errors_are_never_enough(lossless: CheckInput) -> None:
    assert diagnosed(faulty(lossless, spread(4, low=50))).family == Family.UNKNOWN


@pytest.mark.parametrize("first", [1, 2, 5])
def test_errors_that_spare_only_the_first_tokens_are_those_of_decoding_not_of_a_length(
    lossless: CheckInput, first: int
) -> None:
    found = diagnosed(faulty(lossless, spread(200, first)))
    assert found.family == "unknown"
    assert f"after position {first - 1}" in found.evidence or "without a common place" in found.evidence


def test_errors_in_the_middle_are_no_threshold(lossless: CheckInput) -> None:
    found = diagnosed(faulty(lossless, spread(40, low=20, high=26)))
    assert found.family == Family.UNKNOWN
    assert "at positions 20 to 25" in found.sentence


def test_errors_of_long_prompts_are_a_threshold_of_length(lossless: CheckInput) -> None:
    long = [index for index, request in enumerate(lossless.requests) if len(request.prompt_ids) > 150]
    found = diagnosed(faulty(lossless, [(index, index % LENGTH - 1 if index % LENGTH else 3) for index in long]))
    assert found.family == Family.POSITION_THRESHOLD
    assert "in replies to prompts of over 150 tokens" in found.sentence


def test_ids_of_one_residue_are_a_bias_wherever_they_start(lossless: CheckInput) -> None:
    ids = [49 + 7 * index for index in range(30)]
    anywhere = diagnosed(faulty(lossless, spread(30), ids))
    assert anywhere.family == Family.BIAS
    assert "30 of 30 served ids of large-margin tokens are divisible by 7" in anywhere.sentence
    late = diagnosed(faulty(lossless, spread(30, low=40), ids))
    assert late.family == Family.BIAS
    assert late.also == (Family.POSITION_THRESHOLD.value,)
    assert "likely family: bias, with position threshold" in late.sentence
    assert "after position 39" in late.sentence


def test_ids_of_one_shard_are_a_bias(lossless: CheckInput) -> None:
    found = diagnosed(faulty(lossless, spread(40), list(range(760, 800))))
    assert found.family == Family.BIAS
    assert "from 750 to 874" in found.sentence


def test_one_id_everywhere_is_a_bias_and_in_one_place_it_is_that_place(lossless: CheckInput) -> None:
    assert diagnosed(faulty(lossless, spread(30), [500] * 30)).family == Family.BIAS
    late = diagnosed(faulty(lossless, spread(30, low=40), [500] * 30))
    assert late.family == Family.POSITION_THRESHOLD
    assert late.also == (Family.BIAS.value,)


def test_a_loop_counts_once(lossless: CheckInput) -> None:
    """One reply that repeats one id is one error, not forty."""
    found = diagnosed(faulty(lossless, [(5, position) for position in range(10, 50)], [500] * 40))
    assert found.family == Family.UNKNOWN


def test_an_id_that_is_often_second_is_no_bias(lossless: CheckInput) -> None:
    """Id 11 is the runner-up everywhere, so that serving it says nothing."""
    assert diagnosed(faulty(lossless, spread(30), [11] * 30)).family == Family.UNKNOWN


def test_stop_ids_served_early_are_eos(lossless: CheckInput) -> None:
    found = diagnosed(faulty(lossless, spread(30, high=50), [STOP_ID] * 30))
    assert found.family == Family.EOS
    assert "30 of 30 large-margin tokens serve a stop id" in found.sentence


def test_stop_ids_that_are_missed_are_eos(lossless: CheckInput) -> None:
    given = faulty(lossless, spread(30))
    scores = given.candidate.scores
    best = np.where(scores.gap > 1, STOP_ID, scores.best_id).astype(np.int32)
    found = diagnosed(replace(given, candidate=replace(given.candidate, scores=replace(scores, best_id=best))))
    assert found.family == Family.EOS


def test_broken_ends_alone_are_eos_and_other_rules_are_not(lossless: CheckInput) -> None:
    outputs = [replace(output, ids=output.ids[:-1]) for output in lossless.candidate.outputs]
    cut = replace(lossless, candidate=replace(lossless.candidate, outputs=outputs))
    found = diagnosed(cut)
    assert found.family == Family.EOS
    assert f"(stop {NUM_REQUESTS}, stop-reason {NUM_REQUESTS})" in found.sentence
    strange = [replace(output, request_id="x") for output in lossless.candidate.outputs[:5]]
    other = replace(
        lossless, candidate=replace(lossless.candidate, outputs=[*strange, *lossless.candidate.outputs[5:]])
    )
    assert diagnosed(other).family == Family.UNKNOWN


@pytest.mark.parametrize(
    ("low", "high", "words"), [(7, 8, "in batches of 7 or more"), (1, 2, "in batches of 2 or fewer")]
)
def test_errors_at_some_batch_sizes_are_batch(lossless: CheckInput, low: int, high: int, words: str) -> None:
    sizes = [float(1 + index % 8) for index in range(NUM_REQUESTS)]
    hit = [index for index, size in enumerate(sizes) if low <= size <= high]
    given = faulty(lossless, [(index, index * 5 % LENGTH) for index in hit])
    found = diagnosed(with_telemetry(given, "batch", [(size,) for size in sizes]))
    assert found.family == Family.BATCH
    assert words in found.sentence


def _after_rejection(number: int) -> tuple[float, ...]:
    """Blocks of four tokens; every third block follows a rejection."""
    return tuple(float(position // 4 % 3 == 2) for position in range(number))


@pytest.mark.parametrize("form", ["flags", "counts"])
def test_errors_after_rejected_drafts_are_state(lossless: CheckInput, form: str) -> None:
    starts = [position for position in range(LENGTH) if position % 12 == 8]
    given = faulty(lossless, [(index * 3 % NUM_REQUESTS, starts[index % len(starts)]) for index in range(30)])
    if form == "flags":
        given = with_telemetry(given, "after_rejection", [_after_rejection(LENGTH)] * NUM_REQUESTS)
        blocks = tuple(float(position % 4) for position in range(LENGTH))
        given = with_telemetry(given, "block_position", [blocks] * NUM_REQUESTS)
    else:
        rejects = tuple(5.0 if position // 4 % 3 == 1 else 3.0 for position in range(LENGTH))
        given = with_telemetry(given, "drafts", [rejects] * NUM_REQUESTS)
        given = with_telemetry(given, "accepted", [(3.0,) * LENGTH] * NUM_REQUESTS)
    found = diagnosed(given)
    assert found.family == Family.STATE_AFTER_REJECTION
    assert "within 1 tokens of a rejected draft" in found.sentence


def test_two_places_that_fit_alike_are_unknown(lossless: CheckInput) -> None:
    """Batches of eight serve the late positions only: nothing tells one from the other."""
    column = tuple(1.0 if position < 40 else 8.0 for position in range(LENGTH))
    given = with_telemetry(faulty(lossless, spread(30, low=40)), "batch", [column] * NUM_REQUESTS)
    found = diagnosed(given)
    assert found.family == Family.UNKNOWN
    assert found.reason.startswith("two patterns fit")


def test_a_prompt_set_is_named_but_is_no_family(lossless: CheckInput) -> None:
    hit = [index for index, request in enumerate(lossless.requests) if request.set == "code"][:40]
    found = diagnosed(faulty(lossless, [(index, index * 5 % LENGTH) for index in hit]))
    assert found.family == Family.UNKNOWN
    assert "in prompt set code" in found.sentence


def test_lower_ranked_picks_inside_ties_are_near_tie(lossless: CheckInput) -> None:
    scores = lossless.candidate.scores
    second = scores.top_logits[:, 0] - scores.top_logits[:, 1]
    picked = second <= 0.0625
    gap = np.where(picked, second, scores.gap).astype(np.float32)
    flipped = replace(scores, gap=gap, served_id=np.where(picked, 11, scores.served_id).astype(np.int32))
    found = diagnosed(replace(lossless, candidate=replace(lossless.candidate, scores=flipped)))
    assert found.family == Family.NEAR_TIE
    assert "lower-ranked picks inside ties where stock's habits give" in found.sentence


def test_events_that_stock_explains_are_no_errors(lossless: CheckInput) -> None:
    given = faulty(lossless, spread(30, low=40))
    audit = tuple(AuditedEvent.from_json({**event.to_json(), "explained": True}) for event in given.candidate.audit)
    thresholds_apart = replace(given, candidate=replace(given.candidate, audit=audit))
    found = diagnose(thresholds_apart, [])
    assert "large-margin" not in found.sentence


def test_a_lossless_run_has_nothing_to_explain(lossless: CheckInput) -> None:
    found = diagnosed(lossless)
    assert found.family == Family.UNKNOWN
    assert found.sentence.startswith("no kind of token is in excess of stock's")


def test_it_is_a_pure_function(lossless: CheckInput) -> None:
    given = faulty(lossless, spread(30, low=40))
    assert diagnosed(given) == diagnosed(given)


def test_empty_replies_are_no_problem(lossless: CheckInput) -> None:
    scores = lossless.candidate.scores
    columns = {name: getattr(scores, name) for name in ForcedScores.__dataclass_fields__}
    kept = slice(0, int(scores.offsets[-2]))
    cut = {name: value[kept] for name, value in columns.items() if isinstance(value, np.ndarray) and name != "offsets"}
    offsets = np.concatenate([scores.offsets[:-1], scores.offsets[-2:-1]])
    fewer = ForcedScores(**{**columns, **cut, "offsets": offsets})
    outputs = [*lossless.candidate.outputs[:-1], replace(lossless.candidate.outputs[-1], ids=())]
    given = replace(lossless, candidate=Arm(name="candidate", outputs=outputs, scores=fewer))
    assert diagnosed(faulty(given, spread(30, low=40)[:20])).family == Family.POSITION_THRESHOLD
