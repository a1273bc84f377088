"""Faults between model and client: what they change, and what they leave alone."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from lossguard.records import FinishReason, ReportedLogprobs, Request, ServedOutput
from lossguard_suites.adversarial.faults.cut_replies import cut_replies
from lossguard_suites.adversarial.faults.recomputed import preemption_telemetry
from lossguard_suites.adversarial.faults.stream_losses import (
    NO_SUCH_ID,
    doubled_at_resume,
    impossible_id,
    lost_at_blocks,
    lost_at_resume,
    mislabelled_end,
    past_the_stop,
    with_positions,
)
from lossguard_suites.adversarial.faults.wrong_reports import cut_text, processed_logprobs, wrong_usage, zero_logprobs
from tests.suites.tiny_faults import STOP_ID, make_requests


def output_of(ids: tuple[int, ...], finish: FinishReason = FinishReason.LENGTH) -> ServedOutput:
    number = len(ids)
    return ServedOutput(
        request_id="s-057",
        ids=ids,
        finish_reason=finish,
        stop_reason=ids[-1] if finish is FinishReason.STOP else None,
        arrival_ns=tuple(range(number)),
        logprobs=ReportedLogprobs(
            served=(-1.0,) * number, top_ids=((1, 2),) * number, top_logprobs=((-0.5, -1.0),) * number
        ),
        telemetry={"batch": (3.0,), "block_position": tuple(float(at) for at in range(number))},
    )


def request_of(max_tokens: int = 32) -> Request:
    return make_requests(1, max_tokens=max_tokens)[0]


def lengths_of(output: ServedOutput) -> set[int]:
    assert output.logprobs is not None
    reported = output.logprobs
    columns = (output.ids, output.arrival_ns, reported.served, reported.top_ids, reported.top_logprobs)
    return {*map(len, columns), len(output.telemetry["block_position"])}


def test_a_cut_reply_claims_full_length() -> None:
    request = request_of()
    output = ServedOutput(
        request_id="r0",
        ids=(5, 6, 7, 8, 9, STOP_ID),
        finish_reason=FinishReason.STOP,
        stop_reason=STOP_ID,
        arrival_ns=(1, 2, 3, 4, 5, 6),
        logprobs=ReportedLogprobs(served=(-1.0,) * 6, top_ids=((1,),) * 6, top_logprobs=((-1.0,),) * 6),
        telemetry={"batch": (3.0,), "block_position": (0.0,) * 6},
    )
    cut = cut_replies(output, request, tokens=2)
    assert cut.ids == (5, 6, 7, 8)
    assert (cut.finish_reason, cut.stop_reason) == (FinishReason.LENGTH, None)
    assert cut.logprobs is not None
    lengths = {len(cut.arrival_ns), len(cut.logprobs.served), len(cut.logprobs.top_ids), len(cut.logprobs.top_logprobs)}
    assert lengths == {4}
    assert cut.telemetry == {"batch": (3.0,), "block_position": (0.0,) * 4}
    assert cut_replies(output, request, tokens=99).ids == (5,)
    one = replace(output, ids=(5,))
    assert cut_replies(one, request) is one


def test_columns_move_with_their_tokens() -> None:
    moved = with_positions(output_of((5, 6, 7, 8)), [0, 2, 2])
    assert moved.ids == (5, 7, 7)
    assert moved.arrival_ns == (0, 2, 2)
    assert moved.telemetry == {"batch": (3.0,), "block_position": (0.0, 2.0, 2.0)}
    assert lengths_of(moved) == {3}
    same = output_of((5, 6))
    assert with_positions(same, [0, 1]) is same


def test_blocks_lose_their_first_tokens_but_for_the_first_block() -> None:
    lost = lost_at_blocks(output_of(tuple(range(10))), request_of(), tokens=2, block=4)
    assert lost.ids == (0, 1, 2, 3, 6, 7)
    assert lengths_of(lost) == {6}


def test_a_resume_loses_one_token_and_says_where() -> None:
    before = output_of(tuple(range(100, 120)))
    lost = lost_at_resume(before, request_of(), seed=3)
    at = lost.telemetry["preempted"].index(1.0)
    assert lost.ids == before.ids[:at] + before.ids[at + 1 :]
    assert 4 <= at < 19
    assert sum(lost.telemetry["preempted"]) == 1
    assert lost_at_resume(before, request_of(), share=0.0) is before
    places = {lost_at_resume(before, request_of(), seed=seed).telemetry["preempted"].index(1.0) for seed in range(9)}
    assert len(places) > 2


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.STOP])
def test_a_resume_doubles_one_token_within_the_limit(finish: FinishReason) -> None:
    before = output_of(tuple(range(100, 120)), finish)
    limit = 20 if finish is FinishReason.LENGTH else 32
    doubled = doubled_at_resume(before, request_of(limit))
    at = doubled.telemetry["preempted"].index(1.0)
    assert doubled.ids[at] == doubled.ids[at + 1] or doubled.ids[at - 1] == doubled.ids[at]
    assert len(doubled.ids) <= limit
    if finish is FinishReason.STOP:
        assert doubled.ids[-1] == before.ids[-1]
        assert doubled_at_resume(before, request_of(20)) is before  # there is no room for one more


def test_an_impossible_id_never_replaces_the_last_token() -> None:
    wrong = impossible_id(output_of(tuple(range(20))), request_of(), probability=1.0)
    assert wrong.ids == (*[NO_SUCH_ID] * 19, 19)
    assert lengths_of(wrong) == {20}


def test_tokens_follow_a_stop_as_far_as_the_limit_allows() -> None:
    stopped = output_of((5, 6, 7, 8, STOP_ID), FinishReason.STOP)
    assert past_the_stop(stopped, request_of()).ids == (5, 6, 7, 8, STOP_ID, 6, 7, 8)
    assert past_the_stop(stopped, request_of(6)).ids == (5, 6, 7, 8, STOP_ID, 8)
    full = output_of((5, 6, 7, 8))
    assert past_the_stop(full, request_of()) is full


def test_a_stop_is_labelled_as_the_limit() -> None:
    stopped = output_of((5, STOP_ID), FinishReason.STOP)
    wrong = mislabelled_end(stopped, request_of())
    assert (wrong.ids, wrong.finish_reason, wrong.stop_reason) == (stopped.ids, FinishReason.LENGTH, None)
    assert mislabelled_end(stopped, request_of(), share=0.0) is stopped


def test_usage_counts_too_many() -> None:
    usage = wrong_usage(output_of((5, 6, 7)), request_of()).usage
    assert usage is not None
    assert (usage.completion_tokens, usage.reasoning_tokens) == (3, 4)
    right = wrong_usage(output_of((5, 6, 7)), request_of(), excess=0).usage
    assert right is not None
    assert right.reasoning_tokens is None


def test_the_text_loses_its_tail(tmp_path: Path) -> None:
    words = {"one": 0, " two": 1, " three": 2}
    tokenizer: Any = Tokenizer(models.WordLevel(words, unk_token="one"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    cut = cut_text(output_of((0, 1, 2)), request_of(), characters=4, tokenizer=str(tmp_path))
    assert (cut.text, cut.ids) == ("one two t", (0, 1, 2))
    assert cut_text(replace(output_of((0,)), text="one"), request_of(), characters=9).text == ""
    assert cut_text(output_of((0,)), request_of()).text is None


def test_logprobs_are_zero_or_sharpened() -> None:
    before = output_of((5, 6))
    zero = zero_logprobs(before, request_of()).logprobs
    assert zero is not None
    assert zero.served == (0.0, 0.0)
    sharp = processed_logprobs(before, request_of(), sharpening=1.0).logprobs
    assert sharp is not None
    total = math.log(math.exp(-1.0) + math.exp(-2.0))
    assert sharp.top_logprobs[0] == pytest.approx((-1.0 - total, -2.0 - total))
    assert sharp.served[0] == pytest.approx(-2.0 - total)
    silent = replace(before, logprobs=None)
    assert zero_logprobs(silent, request_of()) is silent
    assert processed_logprobs(silent, request_of()) is silent


def test_recomputations_are_reported() -> None:
    flags = preemption_telemetry(output_of(tuple(range(9))), request_of(), every=4).telemetry["preempted"]
    assert flags == (0, 0, 0, 0, 1, 0, 0, 0, 1)
