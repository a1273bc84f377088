"""The loop against transformers' own ``generate``, and speculation against none, at every batch mix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from lossguard.records import Request
from tests.mechanisms.engine.doubles import core_of, job_of, knowing_speculation, random_prompts, request, serve
from tests.mechanisms.targets.tiny import FAMILIES, pair

NUM_NEW = 12


def _generated(model: PreTrainedModel, prompt: list[int], num_new: int) -> tuple[int, ...]:
    config: Any = GenerationConfig
    settings = config(max_new_tokens=num_new, do_sample=False, disable_compile=True)
    model.generation_config = config()  # the family's default end token would cut replies short
    generate: Any = model.generate
    with torch.inference_mode():
        ids = generate(torch.tensor([prompt]), generation_config=settings)
    return tuple(ids[0, len(prompt) :].tolist())


def _requests(count: int, **sampling: Any) -> list[Request]:
    prompts = random_prompts(count, seed=1)
    return [request(f"r{at}", prompt, NUM_NEW + at % 5, **sampling) for at, prompt in enumerate(prompts)]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_replies_are_those_of_transformers(family: str) -> None:
    models = pair(family)
    requests = _requests(6)
    replies = serve(core_of(models.ours, slots=3, chunk=7), requests)
    for asked in requests:
        expected = _generated(models.theirs, list(asked.prompt_ids), asked.sampling.max_tokens)
        assert replies[asked.id] == expected, asked.id


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_text"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_replies_do_not_depend_on_the_batch(family: str, temperature: float) -> None:
    target = pair(family).ours
    requests = _requests(9, temperature=temperature, seed=17 if temperature else None)
    alone = serve(core_of(target, slots=1), requests)
    for slots, chunk in ((8, 64), (32, 5)):
        assert serve(core_of(target, slots=slots, pages=200, chunk=chunk), requests[::-1]) == alone


@pytest.mark.parametrize("family", ["llama", "qwen3_next", "qwen3_5_text"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("slots", [1, 8, 32])
def test_speculation_emits_what_plain_decoding_emits(family: str, temperature: float, slots: int) -> None:
    target = pair(family).ours
    requests = _requests(10, temperature=temperature, seed=17 if temperature else None)
    plain = serve(core_of(target, slots=4, pages=200), requests)
    told = {asked.prompt_ids: plain[asked.id] for asked in requests}
    speculation = knowing_speculation(told)
    core = core_of(target, slots=slots, pages=300, chunk=9, speculation=speculation)
    assert serve(core, requests) == plain


def test_stop_ids_end_a_reply_inside_an_accepted_chain() -> None:
    target = pair("qwen3_5_text").ours
    asked = request("a", [1, 2, 3], 20)
    whole = serve(core_of(target), [asked])["a"]
    stop = whole[7]
    first = whole.index(stop)
    stopped = request("a", [1, 2, 3], 20, stop_ids=(stop,))
    speculation = knowing_speculation({(1, 2, 3): whole}, error_rate=0.0)
    for core in (core_of(target), core_of(target, speculation=speculation)):
        assert serve(core, [stopped])["a"] == whole[: first + 1]


def test_min_tokens_bans_stop_ids_first() -> None:
    target = pair("llama").ours
    whole = serve(core_of(target), [request("a", [5, 6], 6)])["a"]
    asked = request("a", [5, 6], 20, stop_ids=(whole[0],), min_tokens=4)
    plain = serve(core_of(target), [asked])["a"]
    assert whole[0] not in plain[:4]
    speculation = knowing_speculation({(5, 6): plain})
    assert serve(core_of(target, speculation=speculation), [asked])["a"] == plain


@pytest.mark.parametrize("drafts", [False, True])
def test_cancelled_requests_free_what_they_held_wherever_they_are(drafts: bool) -> None:  # noqa: FBT001
    target = pair("qwen3_5_text").ours
    asked = [request(name, prompt, 10) for name, prompt in zip("abcd", random_prompts(4, seed=5), strict=True)]
    whole = serve(core_of(target, slots=1), asked)
    told = {item.prompt_ids: whole[item.id] for item in asked}
    core = core_of(target, slots=3, chunk=3, speculation=knowing_speculation(told) if drafts else None)
    for item in asked:
        core.add(job_of(item))
    while not any(sequence.served for sequence in core.running):
        core.step()
    decoding = next(sequence.job.request.id for sequence in core.running if sequence.served)
    reading = next(sequence.job.request.id for sequence in core.running if sequence.num_unread)
    (waiting,) = {item.id for item in asked} - {sequence.job.request.id for sequence in core.running}
    for name in (decoding, reading, waiting):
        assert core.cancel(name)
        assert not core.cancel(name), "it is gone"
        core.check_integrity()
    (rest,) = {item.id for item in asked} - {decoding, reading, waiting}
    assert serve(core, []) == {rest: whole[rest]}
    again = serve(core, asked[:2])
    assert again == {item.id: whole[item.id] for item in asked[:2]}, (
        "nothing of the cancelled is left in slots and pages"
    )
