"""Replies of the target itself, against one sequence at a time from the start in every step."""

from __future__ import annotations

import pytest
import torch

from lossguard.records import Request, SamplingParams
from lossguard_mechanisms.engine.counter_random import request_key
from lossguard_mechanisms.engine.sampler import RowSampling, choose
from lossguard_mechanisms.replay.generation import generate
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.naive import NaiveMixing
from tests.mechanisms.targets.tiny import pair, random_ids


@pytest.fixture(scope="module")
def target() -> Target:
    return pair("qwen3_5_text").ours


def requests_of(temperature: float, stop_ids: tuple[int, ...] = ()) -> list[Request]:
    return [
        Request(
            id=f"r{index}",
            prompt_ids=tuple(random_ids(num_prompt, seed=index).tolist()),
            sampling=SamplingParams(max_tokens=num_tokens, temperature=temperature, seed=9, stop_ids=stop_ids),
            set="toy",
            cluster=f"r{index}",
        )
        for index, (num_prompt, num_tokens) in enumerate([(4, 6), (11, 3), (2, 9)])
    ]


def reply_alone(target: Target, request: Request) -> list[int]:
    """One token after the other, everything computed again each time."""
    tokens = list(request.prompt_ids)
    begun, key = len(tokens), request_key(9, request.id, 0)
    while len(tokens) - begun < request.sampling.max_tokens and not (
        len(tokens) > begun and tokens[-1] in request.sampling.stop_ids
    ):
        with torch.no_grad():
            hidden = target(torch.tensor(tokens), torch.arange(len(tokens)), NaiveMixing(dtype=torch.float32)).hidden[
                -1:
            ]
            row = RowSampling(params=request.sampling, key=key, position=len(tokens))
            tokens.append(int(choose(target.logits(hidden), [row])[0]))
    return tokens[begun:]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("rows_at_once", [1, 30, 1000])
def test_batches_give_what_single_requests_give(target: Target, temperature: float, rows_at_once: int) -> None:
    requests = requests_of(temperature)
    found = generate(target, requests, rows_at_once=rows_at_once)
    assert found == {request.id: reply_alone(target, request) for request in requests}
    assert [len(found[request.id]) for request in requests] == [6, 3, 9]


def test_a_reply_ends_with_its_stop_token(target: Target) -> None:
    free = generate(target, requests_of(0.0), rows_at_once=1000)
    stop = free["r2"][4]
    stopped = generate(target, requests_of(0.0, stop_ids=(stop,)), rows_at_once=1000)
    assert stopped["r2"] == free["r2"][: free["r2"].index(stop) + 1]
    assert len(stopped["r2"]) < 9


def test_progress_counts_every_token(target: Target) -> None:
    told: list[int] = []
    generate(target, requests_of(0.0), rows_at_once=1000, progress=told.append)
    assert sum(told) == 18
