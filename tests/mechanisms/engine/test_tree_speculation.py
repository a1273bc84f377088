"""Trees in the engine: whatever is drafted, the replies are those of plain decoding, greedy, sampled and mixed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from lossguard.records import Request, ServedOutput
from lossguard_mechanisms.engine.core import EngineCore
from lossguard_mechanisms.engine.decoding import Speculation
from lossguard_mechanisms.engine.speculation import SampleAndMatch
from lossguard_mechanisms.trees.names import BEST_FIRST, TREES
from lossguard_mechanisms.trees.policies import BestFirstPolicy
from lossguard_mechanisms.trees.tree import Path, chain, has_refused, tree_of
from tests.mechanisms.engine.doubles import (
    WrongDrafter,
    branching_speculation,
    core_of,
    job_of,
    knowing_speculation,
    random_prompts,
    request,
    serve,
)
from tests.mechanisms.targets.tiny import pair

NUM_NODES = 9


def requests(count: int, **sampling: Any) -> list[Request]:
    """Replies of several lengths."""
    prompts = random_prompts(count, seed=1)
    return [request(f"r{at}", prompt, 12 + at % 5, **sampling) for at, prompt in enumerate(prompts)]


def told(asked: list[Request], replies: dict[str, tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """What a drafter is to know."""
    return {item.prompt_ids: replies[item.id] for item in asked}


def outputs(core: EngineCore, asked: list[Request]) -> dict[str, ServedOutput]:
    """Whole outputs by request id."""
    for item in asked:
        core.add(job_of(item))
    found: dict[str, ServedOutput] = {}
    while core.has_work:
        found |= {ended.job.request.id: ended.output() for ended in core.step()}
    return found


@pytest.mark.parametrize("policy", TREES)
@pytest.mark.parametrize(("temperature", "slots"), [(0.0, 8), (0.7, 1), (0.7, 8)])
def test_trees_emit_what_plain_decoding_emits_in_fewer_steps(policy: str, temperature: float, slots: int) -> None:
    target = pair("qwen3_5_text").ours
    asked = requests(6, temperature=temperature, seed=17 if temperature else None)
    plain = serve(core_of(target, slots=4, pages=200), asked)
    speculation = branching_speculation(told(asked, plain), policy)
    served = outputs(core_of(target, slots=slots, pages=300, chunk=9, speculation=speculation), asked)
    assert {name: output.ids for name, output in served.items()} == plain
    num_steps = sum(output.telemetry["steps"][0] for output in served.values())
    assert sum(output.telemetry["drafts"][0] for output in served.values()) == NUM_NODES * num_steps
    assert sum(len(output.ids) - 1 for output in served.values()) > 1.3 * num_steps


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
def test_targets_without_and_with_shared_delta_heads(family: str) -> None:
    target = pair(family).ours
    asked = requests(6)
    plain = serve(core_of(target, slots=4, pages=200), asked)
    speculation = branching_speculation(told(asked, plain), BEST_FIRST, num_nodes=40)
    assert serve(core_of(target, slots=3, pages=300, speculation=speculation), asked) == plain


def test_greedy_and_sampled_requests_with_bans_and_logprobs_in_one_batch() -> None:
    target = pair("qwen3_5_text").ours
    asked = requests(8)
    whole = serve(core_of(target, pages=200), asked)
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.7, "seed": 3},
        {"temperature": 1.0, "seed": 3, "top_p": 0.8, "top_k": 20},
        {"stop_ids": (whole["r3"][0], whole["r3"][4]), "min_tokens": 3},
        {"logprobs": 3},
        {"temperature": 0.7, "seed": 4, "logprobs": 2},
        {"stop_ids": (whole["r6"][5],)},
        {},
    ]
    mixed = [replace(item, sampling=replace(item.sampling, **kind)) for item, kind in zip(asked, kinds, strict=True)]
    plain = outputs(core_of(target, slots=8, pages=300), mixed)
    known = told(mixed, {name: output.ids for name, output in plain.items()})
    speculation = branching_speculation(known, BEST_FIRST)
    served = outputs(core_of(target, slots=8, pages=300, speculation=speculation), mixed)
    for name, expected in plain.items():
        assert (served[name].ids, served[name].finish_reason) == (expected.ids, expected.finish_reason), name
        found = served[name].logprobs
        assert (found is None) is (expected.logprobs is None)
        if found is not None and expected.logprobs is not None:
            assert found.top_ids == expected.logprobs.top_ids
            assert found.served == pytest.approx(expected.logprobs.served, abs=1e-4)


@pytest.mark.parametrize("num_nodes", [4, 2], ids=["as deep as the drafter", "shallower"])
def test_a_path_that_is_taken_whole_counts_as_no_rejection(num_nodes: int) -> None:
    target = pair("qwen3_5_text").ours
    asked = requests(2)
    plain = serve(core_of(target, pages=200), asked)
    drafter = knowing_speculation(told(asked, plain), error_rate=0.0).drafter
    policy = BestFirstPolicy(num_nodes, on_edges=False, num_depths=4)
    speculation = Speculation(drafter=drafter, policy=policy, acceptance=SampleAndMatch())
    for output in outputs(core_of(target, pages=300, speculation=speculation), asked).values():
        assert set(output.telemetry["after_rejection"]) == {0.0}
        assert output.telemetry["block_position"][: num_nodes + 2] == (0.0, *map(float, range(num_nodes + 1)))


def test_nothing_is_refused_at_a_leaf() -> None:
    tree = tree_of(torch.zeros(4, 5, dtype=torch.int64), torch.tensor([[-1, 0, 0, 1, 1]] * 4))
    nodes = torch.tensor([[0, 1, 3], [0, 1, 0], [0, 2, 0], [0, 0, 0]])  # ends: leaf, above two, leaf, root
    path = Path(nodes=nodes, num_nodes=torch.tensor([3, 2, 2, 1]), emitted=nodes)
    assert has_refused(tree, path).tolist() == [False, True, False, True]
    alone = chain(torch.zeros(1, dtype=torch.int64), torch.zeros(1, 0, dtype=torch.int64))
    whole = Path(nodes=nodes[:1, :1], num_nodes=torch.tensor([1]), emitted=nodes[:1, :1])
    assert has_refused(alone, whole).tolist() == [False], "nothing was drafted"


def test_trees_of_one_candidate_are_the_chain_step_for_step() -> None:
    target = pair("qwen3_5_text").ours
    asked = requests(6)
    plain = serve(core_of(target, pages=200), asked)
    chain = knowing_speculation(told(asked, plain))
    drafter = knowing_speculation(told(asked, plain)).drafter  # errs at the same places, in batches of one
    tree = Speculation(
        drafter=drafter, policy=BestFirstPolicy(4, on_edges=False, num_depths=4), acceptance=chain.acceptance
    )
    served = [
        outputs(core_of(target, slots=1, pages=300, speculation=speculation), asked) for speculation in (chain, tree)
    ]
    for name, output in served[0].items():
        assert served[1][name].ids == output.ids == plain[name]
        assert served[1][name].telemetry == output.telemetry


def test_nothing_of_a_tree_is_left_when_its_first_nodes_are_refused() -> None:
    """A drafter that is never right: each step emits one token, from states that no draft has touched."""
    target = pair("qwen3_5_text").ours
    asked = requests(4)
    plain = serve(core_of(target, pages=200), asked)
    speculation = branching_speculation(told(asked, plain), BEST_FIRST, drafts=WrongDrafter)
    served = outputs(core_of(target, pages=300, speculation=speculation), asked)
    assert {name: output.ids for name, output in served.items()} == plain
    assert sum(sum(output.telemetry["drafts"]) for output in served.values()) > 100
    assert all(sum(output.telemetry["accepted"]) == 0 for output in served.values())
