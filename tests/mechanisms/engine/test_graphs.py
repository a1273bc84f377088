"""The steps that CUDA graphs hold, without capture: greedy and sampled batches against the host's own choice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lossguard.records import Request
from lossguard_mechanisms.drafters.fresh import random_drafter
from lossguard_mechanisms.engine import graphs
from lossguard_mechanisms.engine.decoding import Speculation
from lossguard_mechanisms.engine.speculation import ChainPolicy, Policy, SampleAndMatch
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.trees.policies import BestFirstPolicy
from tests.mechanisms.engine.doubles import EagerGraph, core_of, random_prompts, request, serve
from tests.mechanisms.targets.tiny import pair

TEMPERATURES = (0.0, 0.7, 1.0, 1.6)


class Counted(EagerGraph):
    """Counts for one test."""


@pytest.fixture(autouse=True)
def eager_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    Counted.num_replays = 0
    monkeypatch.setattr(graphs, "_Captured", Counted)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)


def speculation_of(target: Target, policy: Policy | None) -> Speculation | None:
    if policy is None:
        return None
    drafter = random_drafter("dflash2", target, seed=1)
    return Speculation(drafter=drafter, policy=policy, acceptance=SampleAndMatch())


def mixed(count: int) -> list[Request]:
    """Requests at all temperatures, of several lengths, each with a seed of its own."""
    prompts = random_prompts(count, seed=3)
    return [
        request(f"r{at}", prompt, 9 + at % 4, temperature=TEMPERATURES[at % 4], seed=at)
        for at, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize(
    "policy", [None, ChainPolicy(4), BestFirstPolicy(12, on_edges=True, num_depths=4)], ids=["plain", "chain", "tree"]
)
@pytest.mark.parametrize("slots", [1, 5])
def test_graphs_serve_what_the_host_chooses(policy: Policy | None, slots: int) -> None:
    target = pair("qwen3_5_text").ours
    asked = mixed(6)
    speculation = speculation_of(target, policy)
    without = serve(core_of(target, slots=slots, pages=300, speculation=speculation), asked)
    assert serve(core_of(target, slots=slots, pages=300, speculation=speculation, has_graphs=True), asked) == without
    assert Counted.num_replays >= 5


def test_steps_that_graphs_do_not_do_run_without() -> None:
    target = pair("qwen3_5_text").ours
    prompt = random_prompts(1, seed=3)[0]
    asked = request("r", prompt, 6, temperature=0.9, seed=1)
    for change in ({"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.1}, {"logprobs": 2}, {"min_tokens": 6, "stop_ids": (5,)}):
        other = replace(asked, sampling=replace(asked.sampling, **change))
        core = core_of(target, pages=100, has_graphs=True)
        assert serve(core, [other]) == serve(core_of(target, pages=100), [other])
        assert Counted.num_replays == 0, change


def test_filters_of_greedy_requests_change_nothing() -> None:
    target = pair("qwen3_5_text").ours
    asked = request("r", random_prompts(1, seed=3)[0], 6, top_k=3, top_p=0.8)
    assert serve(core_of(target, pages=100, has_graphs=True), [asked]) == serve(core_of(target, pages=100), [asked])
    assert Counted.num_replays == 5
