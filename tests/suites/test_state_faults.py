"""Faults of state: what each one changes in a forward pass, and that nothing else changes with it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lossguard.engines.extensions import ForwardCall
from lossguard.records import FinishReason, Request, ServedOutput
from lossguard_suites.adversarial.faults import fault
from lossguard_suites.adversarial.faults.cache_values import fp8_cache, last_bit_cache, wrong_scale
from lossguard_suites.adversarial.faults.chunked_prompt import blind_chunks, chunked_prompt, wrong_chunk
from lossguard_suites.adversarial.faults.drawing import is_in_share, is_late
from lossguard_suites.adversarial.faults.hidden_keys import (
    forgotten_drafts,
    lost_block,
    lost_splits,
    short_window,
    stale_length,
)
from lossguard_suites.adversarial.faults.passes import padding_of
from lossguard_suites.adversarial.faults.positions import frozen_positions, late_positions, restarted_positions
from lossguard_suites.adversarial.faults.recomputed import recomputed_entries
from lossguard_suites.adversarial.faults.rejected_drafts import kept_drafts, neighbours_count
from lossguard_suites.adversarial.faults.speculation import (
    NUM_DRAFTS,
    block_before,
    schedule,
    speculation_telemetry,
)
from lossguard_suites.adversarial.faults.stale_prefix import kept_tail, other_prompt
from tests.suites.tiny_faults import context_of, make_requests, serve

HEADS, SIZE, VOCABULARY = 2, 4, 32


class Layer:
    """One layer of a cache, growing by concatenation as the real one does."""

    def __init__(self, rows: int) -> None:
        self.keys = torch.zeros(rows, HEADS, 0, SIZE)
        self.values = torch.zeros(rows, HEADS, 0, SIZE)


class Recorder:
    """A model that computes nothing: it notes its arguments and fills the cache with the ids that it reads."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.context = context_of(requests)
        self.layers = [Layer(len(requests))]
        self.calls: list[dict[str, Any]] = []
        padding = padding_of(self.context)
        rows = [[0] * empty + list(item.prompt_ids) for empty, item in zip(padding, requests, strict=True)]
        self.ids = torch.tensor(rows)
        self.mask = torch.tensor(
            [[0] * empty + [1] * len(item.prompt_ids) for empty, item in zip(padding, requests, strict=True)]
        )

    def get_seq_length(self) -> int:
        return self.layers[0].keys.shape[2]

    def run(self, edit: Any, num_steps: int) -> None:
        """The prompt's pass and ``num_steps - 1`` passes of one token each; token 7 is served at every step."""
        mask, ids = self.mask, self.ids
        for _ in range(num_steps):
            positions = (mask.cumsum(dim=1) - 1).clamp_min(0)[:, -ids.shape[1] :]
            arguments = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "cache": self}
            edit(ForwardCall(model=None, arguments=arguments, proceed=self._forward))
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            ids = torch.full((ids.shape[0], 1), 7)

    def _forward(self, arguments: Any) -> Any:
        self.calls.append({**arguments, "num_cached": self.get_seq_length()})
        new = arguments["input_ids"][:, None, :, None].float().expand(-1, HEADS, -1, SIZE).clone()
        for layer in self.layers:
            layer.keys, layer.values = torch.cat([layer.keys, new], dim=2), torch.cat([layer.values, new], dim=2)
        assert arguments["attention_mask"].shape[1] == self.get_seq_length()
        assert arguments["position_ids"].shape[-1] == arguments["input_ids"].shape[1]
        rows = arguments["input_ids"].shape[0]
        logits = torch.arange(VOCABULARY, 0, -1).float().expand(rows, 1, VOCABULARY)  # ids 0, 1, 2, ... in this order
        return type("Output", (), {"logits": logits})()

    def hidden(self, call: int, row: int) -> list[int]:
        """Columns of the context, from the prompt's first token, that a row does not see in a pass."""
        shown = self.calls[call]["attention_mask"][row, padding_of(self.context)[row] :]
        return [at for at, value in enumerate(shown.tolist()) if not value]


def recorder(number: int = 5, **sampling: Any) -> Recorder:
    return Recorder(make_requests(number, **sampling))


@given(seed=st.integers(0, 1000), index=st.integers(0, 7))
def test_a_schedule_covers_the_reply_without_gaps(seed: int, index: int) -> None:
    request = make_requests()[index]
    blocks = schedule(request, seed)
    assert blocks[0].start == 1
    assert all(later.start == earlier.stop for earlier, later in pairwise(blocks))
    assert blocks[-1].stop >= request.sampling.max_tokens
    assert all(block.accepted + block.rejected == NUM_DRAFTS for block in blocks)
    assert schedule(request, seed + 1) != blocks or seed < 0 or len(blocks) < 8


def test_a_schedule_rejects_about_as_often_as_its_acceptance_says() -> None:
    blocks = [block for seed in range(60) for block in schedule(make_requests()[0], seed)]
    share = sum(block.accepted == NUM_DRAFTS for block in blocks) / len(blocks)
    assert 0.25 < share < 0.44  # 0.7 ** 3 = 0.343


def test_telemetry_tells_the_schedule() -> None:
    request = make_requests()[0]
    output = ServedOutput(request_id=request.id, ids=(7,) * 32, finish_reason=FinishReason.LENGTH)
    telemetry = speculation_telemetry(output, request, seed=3).telemetry
    blocks = schedule(request, 3)
    for block, before in ((blocks[4], blocks[3]), (blocks[5], blocks[4])):
        spans = range(block.start, block.stop)
        assert [telemetry["block_position"][at] for at in spans] == [float(at) for at in range(len(spans))]
        assert {telemetry["after_rejection"][at] for at in spans} == {float(before.rejected > 0)}
    assert telemetry["after_rejection"][1] == 0.0
    assert telemetry["drafts"] == (3.0 * len(blocks),)


@given(share=st.floats(0, 1), seed=st.integers(0, 50))
def test_shares_are_spread_evenly(share: float, seed: int) -> None:
    requests = make_requests(40)
    hit = [is_in_share(request, share=share, seed=seed) for request in requests]
    assert abs(sum(hit) - 40 * share) <= 1
    for first in range(0, 40, 8):
        assert abs(sum(hit[first : first + 8]) - 8 * share) <= 1


def test_a_request_is_late_by_its_number() -> None:
    assert [is_late(request, after=60) for request in make_requests(5)] == [False, False, False, True, True]


def test_the_last_whole_block_is_lost_in_every_pass() -> None:
    seen = recorder()
    seen.run(lost_block(seen.context, block=8), 3)
    for call in range(3):
        assert seen.hidden(call, 0) == list(range(8, 16))  # 20 tokens: blocks 0-7, 8-15, then 4 more
        assert seen.hidden(call, 3) == list(range(24, 32))  # 38 tokens
    assert recorder_with(lost_block, share=0.0).hidden(0, 0) == []


def recorder_with(factory: Any, num_steps: int = 3, **arguments: Any) -> Recorder:
    seen = recorder()
    seen.run(factory(seen.context, **arguments), num_steps)
    return seen


def test_a_stale_length_hides_what_came_later_but_the_current_token() -> None:
    seen = recorder_with(stale_length, 5, keys=22)
    assert seen.hidden(0, 0) == []
    assert [seen.hidden(call, 0) for call in (1, 2, 3, 4)] == [[], [], [], [22]]
    assert seen.hidden(1, 3) == list(range(22, 38))


def test_every_second_split_is_lost_while_decoding() -> None:
    seen = recorder_with(lost_splits, split=8)
    assert seen.hidden(0, 0) == []
    assert seen.hidden(1, 0) == [*range(8, 16)]
    assert seen.hidden(1, 3) == [*range(8, 16), *range(24, 32)]


def test_a_short_window_loses_its_oldest_token() -> None:
    seen = recorder_with(short_window, 4, window=22)
    assert [seen.hidden(call, 0) for call in range(4)] == [[], [], [0], [0]]
    assert [seen.hidden(call, 3) for call in range(4)] == [[], [0], [0], [0]]


def test_forgotten_drafts_are_those_of_the_block_before() -> None:
    seen = recorder(max_tokens=32)
    seen.run(forgotten_drafts(seen.context, seed=5), 32)
    for row, request in enumerate(seen.context.requests):
        before = block_before(request, 5)
        for position in range(32):
            block, context = before.get(position), len(request.prompt_ids) + position - 1
            lost = list(range(context - block.accepted, context)) if block else []
            assert seen.hidden(position, row) == lost


def test_kept_drafts_are_seen_once_and_leave_the_cache() -> None:
    seen = recorder(max_tokens=32)
    seen.run(kept_drafts(seen.context, seed=5), 32)
    prompt_length = seen.context.prompt_length
    assert seen.get_seq_length() == prompt_length + 31
    assert (seen.layers[0].keys[:, :, prompt_length:] == 7).all()  # nothing but served tokens
    for position, call in enumerate(seen.calls):
        blocks = [block_before(request, 5).get(position) for request in seen.context.requests]
        extra = [0 if block is None else block.rejected for block in blocks]
        number = max(extra) if position else 0
        assert call["input_ids"].shape[1] == (number + 1 if position else prompt_length)
        for row, wanted in enumerate(extra):
            if position:
                assert call["attention_mask"][row, -number - 1 : -1].tolist() == [1] * wanted + [0] * (number - wanted)
                assert call["input_ids"][row, :-1].tolist() == [1, 2, 3][:number]  # second-best and on
                true = len(seen.context.requests[row].prompt_ids) + position - 1
                assert call["position_ids"][row].tolist() == [*range(true, true + number), true]


def test_kept_drafts_can_stay_for_the_whole_block() -> None:
    once, always = recorder(max_tokens=32), recorder(max_tokens=32)
    once.run(kept_drafts(once.context, seed=5), 32)
    always.run(kept_drafts(always.context, seed=5, every_step=True), 32)
    widths = [[call["input_ids"].shape[1] > 1 for call in seen.calls[1:]] for seen in (once, always)]
    assert sum(widths[1]) > sum(widths[0])
    assert always.get_seq_length() == always.context.prompt_length + 31


def test_a_neighbours_count_hides_or_adds_and_needs_a_neighbour() -> None:
    seen = recorder(max_tokens=32)
    seen.run(neighbours_count(seen.context, probability=1.0, seed=5), 32)
    extra = sum(call["input_ids"].shape[1] > 1 for call in seen.calls[1:])
    hidden = sum(bool(seen.hidden(call, row)) for call in range(1, 32) for row in range(5))
    assert extra > 0
    assert hidden > 0
    alone = recorder(1, max_tokens=32)
    alone.run(neighbours_count(alone.context, probability=1.0, seed=5), 32)
    assert all(call["attention_mask"].all() and call["input_ids"].shape[1] == 1 for call in alone.calls[1:])


def test_positions_freeze_restart_or_come_late() -> None:
    frozen = recorder_with(frozen_positions, 4, limit=22)
    assert [int(call["position_ids"][0, -1]) for call in frozen.calls] == [19, 20, 21, 21]
    restarted = recorder_with(restarted_positions, 2, block=8)
    padding = padding_of(restarted.context)[0]
    assert restarted.calls[0]["position_ids"][0, padding:].tolist() == [*range(8), *range(12)]
    assert restarted.calls[1]["position_ids"][0].tolist() == [20]
    late = recorder(max_tokens=32)
    late.run(late_positions(late.context, seed=5), 32)
    for position in range(1, 32):
        for row, request in enumerate(late.context.requests):
            block = block_before(request, 5).get(position)
            shift = 1 if block is not None and block.accepted else 0
            assert int(late.calls[position]["position_ids"][row, 0]) == len(request.prompt_ids) + position - 1 + shift


def test_chunks_see_all_before_them_or_miss_the_last() -> None:
    whole = recorder_with(chunked_prompt, 2, chunk=10)
    assert [call["input_ids"].shape[1] for call in whole.calls] == [10, 10, 10, 10, 4, 1]
    assert torch.equal(torch.cat([call["input_ids"] for call in whole.calls[:5]], dim=1), whole.ids)
    assert torch.equal(whole.calls[4]["attention_mask"], whole.mask)
    blind = recorder_with(blind_chunks, 2, chunk=10)
    row = blind.context.requests.index(max(blind.context.requests, key=lambda item: len(item.prompt_ids)))
    assert blind.hidden(2, row) == list(range(10, 20))
    assert blind.hidden(5, row) == []
    assert len(recorder_with(blind_chunks, 2, share=0.0).calls) == 2


def test_a_wrong_chunk_repeats_the_first_one() -> None:
    seen = recorder_with(wrong_chunk, 1, chunk=16, tokens=6)
    request, padding = seen.context.requests[0], padding_of(seen.context)[0]
    read = seen.calls[0]["input_ids"][0, padding:].tolist()
    assert read == [*request.prompt_ids[:16], *request.prompt_ids[:4]]
    longer = seen.calls[0]["input_ids"][2, padding_of(seen.context)[2] :].tolist()
    prompt = list(seen.context.requests[2].prompt_ids)
    assert longer == [*prompt[:16], *prompt[:6], *prompt[22:]]


def test_entries_are_recomputed_from_their_own_tokens() -> None:
    seen = recorder_with(recomputed_entries, 9, tokens=3, every=4)
    assert [call["input_ids"].shape[1] for call in seen.calls[1:]] == [1, 1, 1, 4, 1, 1, 1, 4]
    call = seen.calls[4]
    assert call["num_cached"] == seen.context.prompt_length
    assert call["position_ids"][0].tolist() == [20, 21, 22, 23]
    assert seen.get_seq_length() == seen.context.prompt_length + 8
    all_of_it = recorder_with(recomputed_entries, 3, tokens=999, every=2)
    assert all_of_it.calls[2]["num_cached"] == 0
    assert all_of_it.get_seq_length() == all_of_it.context.prompt_length + 2


def test_a_stale_prefix_stands_before_the_prompt_until_the_end() -> None:
    seen = recorder_with(kept_tail, 3, tokens=4)
    requests = seen.context.requests
    assert seen.calls[0]["input_ids"].tolist() == [list(requests[(row + 1) % 5].prompt_ids[-4:]) for row in range(5)]
    padding = padding_of(seen.context)[0]
    assert seen.calls[1]["position_ids"][0, padding:].tolist() == list(range(4, 24))
    assert seen.calls[3]["position_ids"][0].tolist() == [25]
    assert seen.calls[3]["attention_mask"].shape[1] == 4 + seen.context.prompt_length + 2
    half = recorder_with(other_prompt, 2, tokens=4, share=0.5)
    hit = [is_in_share(request, share=0.5, seed=0) for request in half.context.requests]
    assert half.calls[0]["attention_mask"].any(dim=1).tolist() == hit
    assert [int(value) for value in half.calls[2]["position_ids"][:, 0]] == [
        len(request.prompt_ids) + (4 if is_hit else 0)
        for request, is_hit in zip(half.context.requests, hit, strict=True)
    ]


def test_cache_entries_are_scaled_rounded_or_moved_by_one_bit() -> None:
    ids = recorder().ids
    scaled = recorder_with(wrong_scale, 1, after=60)
    late = [is_late(request, after=60) for request in scaled.context.requests]
    factors = torch.tensor([1.5 if is_hit else 1.0 for is_hit in late])
    assert torch.allclose(scaled.layers[0].keys[:, 0, :, 0], ids * factors[:, None])
    rounded = recorder_with(fp8_cache, 1).layers[0].values[:, 0, :, 0]
    assert torch.equal(rounded, ids.float().clamp(max=448.0).to(torch.float8_e4m3fn).float())
    moved = recorder_with(last_bit_cache, 1, share=0.5).layers[0].keys
    change = (moved / ids[:, None, :, None] - 1)[ids[:, None, :, None].expand_as(moved) > 0]
    assert 0.4 < float((change != 0).float().mean()) < 0.6
    assert float(change.abs().max()) < 3e-7


@pytest.mark.parametrize("name", ["kept-drafts", "kept-tail", "recomputed-entries", "lost-block"])
def test_a_row_that_is_not_hit_is_served_as_by_stock(name: str, tiny_path: str) -> None:
    requests = make_requests()
    planted = fault(name)
    share = {"kept-tail": {"share": 0.5}, "lost-block": {"share": 0.5}, "kept-drafts": {"probability": 0.05}}
    stock = serve(tiny_path, requests)
    faulty = serve(tiny_path, requests, planted.options(**share.get(name, {})))
    changed = [one.ids != other.ids for one, other in zip(stock, faulty, strict=True)]
    if name in ("kept-tail", "lost-block"):
        hit = [is_in_share(request, share=0.5, seed=0) for request in requests]
        assert all(is_hit for is_hit, is_changed in zip(hit, changed, strict=True) if is_changed)
    assert sum(changed) < len(requests)
