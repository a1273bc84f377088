"""Faults of single tokens: each does what it says, in the replies and at the positions that its seed draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import AutoModelForCausalLM

from lossguard.engines.base import EngineSpec
from lossguard.engines.extensions import BatchContext
from lossguard.engines.transformers_engine import create
from lossguard.records import FinishReason, Request, SamplingParams, ServedOutput
from lossguard_suites.adversarial.faults import Fault, fault
from lossguard_suites.adversarial.faults.drawing import is_hit
from lossguard_suites.adversarial.faults.early_stop import early_stop, sentence_ends
from lossguard_suites.adversarial.faults.logit_bias import bias_every_seventh
from lossguard_suites.adversarial.faults.near_ties import bfloat16_step, swap_near_ties
from lossguard_suites.adversarial.faults.wrong_token import wrong_token

STOP_ID = 2
VOCAB_SIZE = 512
PROMPT_LENGTH = 5


def make_requests(number: int, max_tokens: int = 24) -> tuple[Request, ...]:
    generator = torch.Generator().manual_seed(1)
    sampling = SamplingParams(max_tokens=max_tokens, stop_ids=(STOP_ID,))
    prompts = [torch.randint(3, VOCAB_SIZE, (PROMPT_LENGTH,), generator=generator).tolist() for _ in range(number)]
    return tuple(
        Request(id=f"r{index}", prompt_ids=tuple(prompt), sampling=sampling, set="s", cluster=f"r{index}")
        for index, prompt in enumerate(prompts)
    )


def context_of(requests: Sequence[Request], stop_ids: tuple[int, ...] = (STOP_ID,)) -> BatchContext:
    return BatchContext(
        requests=tuple(requests),
        prompt_length=PROMPT_LENGTH,
        stop_ids=stop_ids,
        vocab_size=VOCAB_SIZE,
        model_path="unused",
    )


def at_position(position: int, rows: int, last_token: int = 9) -> torch.Tensor:
    """input_ids as they are when reply position ``position`` is about to be served."""
    return torch.full((rows, PROMPT_LENGTH + position), last_token)


def random_scores(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 5


def serve(path: str, requests: Sequence[Request], planted: Fault | None = None, **arguments: Any) -> list[ServedOutput]:
    options = {} if planted is None else planted.options(**arguments)
    system = create(EngineSpec(name="mine", model_path=path, options=options))
    outputs = {output.request_id: output for output in system.serve(requests)}
    return [outputs[request.id] for request in requests]


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)


def test_a_stock_reply_has_none_of_the_faults_that_act_always(tiny_path: str) -> None:
    requests = make_requests(4)
    plain = serve(tiny_path, requests)
    for name in ("bias-every-seventh", "cut-replies"):
        faulty = serve(tiny_path, requests, fault(name))
        assert all(a.ids != b.ids for a, b in zip(plain, faulty, strict=True))


def test_the_bias_starts_at_its_position_and_hits_its_ids() -> None:
    scores = random_scores(3)
    biased = bias_every_seventh(context_of(make_requests(3)), after=12)
    assert torch.equal(biased(at_position(11, 3), scores), scores)
    change = biased(at_position(12, 3), scores) - scores
    assert torch.allclose(change[:, ::7], torch.tensor(2.0), atol=1e-5)
    assert int((change != 0).sum()) == 3 * math.ceil(VOCAB_SIZE / 7)


def test_the_bias_can_be_kept_to_few_replies() -> None:
    requests = make_requests(40)
    biased = bias_every_seventh(context_of(requests), every=4, seed=1)
    change = biased(at_position(20, 40), random_scores(40)) - random_scores(40)
    hit = [bool(row.any()) for row in change]
    assert hit == [is_hit(request, every=4, seed=1) for request in requests]
    assert 0 < sum(hit) < 40


def test_later_tokens_follow_from_the_wrong_one(tiny_path: str) -> None:
    requests = make_requests(6)
    plain = serve(tiny_path, requests)
    faulty = serve(tiny_path, requests, fault("wrong-token"), every=2, seed=1)
    loader: Any = AutoModelForCausalLM
    model = loader.from_pretrained(tiny_path)
    hit = [is_hit(request, every=2, seed=1) for request in requests]
    assert 0 < sum(hit) < 6
    for request, stock, output, is_faulty in zip(requests, plain, faulty, hit, strict=True):
        position = first_difference(stock.ids, output.ids)
        assert (position is not None) is is_faulty
        if position is None:
            continue
        assert 4 <= position <= 40
        with torch.no_grad():
            logits = model(torch.tensor([[*request.prompt_ids, *output.ids]])).logits[0, PROMPT_LENGTH - 1 : -1]
        served = logits[position, output.ids[position]]
        assert float(logits[position].max() - served) >= 4.0
        assert int((logits[position] > served).sum()) >= 50
        assert list(output.ids[position + 1 :]) == logits.argmax(dim=-1).tolist()[position + 1 :]


def test_a_seed_redraws_replies_and_positions(tiny_path: str) -> None:
    requests = make_requests(12)
    plain = serve(tiny_path, requests)
    places = []
    for seed in (1, 2):
        faulty = serve(tiny_path, requests, fault("wrong-token"), every=2, seed=seed)
        places.append([first_difference(a.ids, b.ids) for a, b in zip(plain, faulty, strict=True)])
    assert places[0] != places[1]
    assert any(a is not None and b is not None and a != b for a, b in zip(*places, strict=True))


def test_a_wrong_token_is_never_a_stop_id_and_needs_a_gap() -> None:
    requests = make_requests(1)
    scores = torch.zeros(1, VOCAB_SIZE)
    scores[0, :100] = 10.0
    scores[0, STOP_ID] = 5.0
    scores[0, 300] = 4.0
    window = (3, 3)
    served = wrong_token(context_of(requests), every=1, window=window)(at_position(3, 1), scores)
    assert int(served.argmax()) == 300
    with pytest.raises(ValueError, match="20"):
        wrong_token(context_of(requests), every=1, window=window, gap_nats=20.0)(at_position(3, 1), scores)


def test_an_early_stop_waits_for_the_end_of_a_sentence() -> None:
    scores = random_scores(2)
    stop = early_stop(context_of(make_requests(2)), after=6, sentence_end_ids=[9])
    assert torch.equal(stop(at_position(6, 2), scores), scores)  # the sentence ends at reply position 5
    assert torch.equal(stop(at_position(7, 2, last_token=8), scores), scores)
    mixed = at_position(7, 2)
    mixed[1, -1] = 8
    served = stop(mixed, scores).argmax(dim=-1).tolist()
    assert served == [STOP_ID, int(scores[1].argmax())]


def test_a_prompts_last_token_ends_no_reply() -> None:
    scores = random_scores(1)
    stop = early_stop(context_of(make_requests(1)), after=0, sentence_end_ids=[9])
    assert torch.equal(stop(at_position(0, 1), scores), scores)
    assert int(stop(at_position(1, 1), scores).argmax()) == STOP_ID


def test_an_early_stop_leaves_a_sound_structure(tiny_path: str) -> None:
    requests = make_requests(4)
    plain = serve(tiny_path, requests)
    ends = sorted({output.ids[10] for output in plain})
    faulty = serve(tiny_path, requests, fault("early-stop"), after=4, sentence_end_ids=ends)
    for stock, output in zip(plain, faulty, strict=True):
        assert output.finish_reason is FinishReason.STOP
        assert output.ids[-1] == STOP_ID
        assert 5 < len(output.ids) <= 12
        assert output.ids[:-1] == stock.ids[: len(output.ids) - 1]


def test_an_early_stop_needs_a_stop_id() -> None:
    with pytest.raises(ValueError, match="stop id"):
        early_stop(context_of(make_requests(1), stop_ids=()), sentence_end_ids=[9])


def test_sentence_ends_come_from_the_tokenizer(tmp_path: Path) -> None:
    words = {"a": 0, ".": 1, "end.": 2, "why?": 3, "b.c": 4, "!\n": 5}
    tokenizer: Any = Tokenizer(models.WordLevel(words, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert sentence_ends(str(tmp_path)) == (1, 2, 3, 5)


@given(value=st.floats(min_value=1e-3, max_value=1e4), is_negative=st.booleans())
def test_a_bfloat16_step_is_the_distance_to_the_next_number(value: float, is_negative: bool) -> None:  # noqa: FBT001
    exact = torch.tensor(value).to(torch.bfloat16)
    above = torch.nextafter(exact, torch.tensor(float("inf"), dtype=torch.bfloat16))
    step = float(bfloat16_step((-exact if is_negative else exact).float()))
    assert step == float(above) - float(exact)


def test_near_ties_are_swapped_and_others_kept() -> None:
    scores = torch.zeros(4, 6)
    scores[0, 1], scores[0, 4] = 9.0, 8.9375  # one step of bfloat16 at 8 to 16
    scores[1, 1], scores[1, 4] = 9.0, 8.875
    scores[2, 4] = scores[2, 1] = 9.0  # an exact tie, which the lower id would win
    scores[3, 1], scores[3, 4] = 5.0, 4.9375  # two steps at 4 to 8
    given_ = scores.clone()
    served = swap_near_ties(context_of(make_requests(4)))(at_position(3, 4), scores)
    assert served.argmax(dim=-1).tolist() == [4, 1, 4, 1]
    assert torch.equal(scores, given_)
    wide = swap_near_ties(context_of(make_requests(4)), delta=0.2)(at_position(3, 4), scores)
    assert wide.argmax(dim=-1).tolist() == [4, 4, 4, 4]
    with pytest.raises(ValueError, match="negative"):
        swap_near_ties(context_of(make_requests(1)), delta=-1.0)


def test_near_ties_that_fall_either_way_are_drawn_by_reply_and_position() -> None:
    context = context_of(make_requests(200))
    scores = torch.zeros(200, VOCAB_SIZE)
    scores[:, 1], scores[:, 4] = 10.0, 9.99
    half = swap_near_ties(context, flipped=0.5, seed=3)
    first, second = (half(at_position(position, 200), scores).argmax(dim=-1) for position in (3, 4))
    assert 70 < int((first == 4).sum()) < 130
    assert not torch.equal(first, second)
    assert torch.equal(half(at_position(3, 200), scores).argmax(dim=-1), first)
    assert bool((swap_near_ties(context, flipped=0.0)(at_position(3, 200), scores).argmax(dim=-1) == 1).all())
