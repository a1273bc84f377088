"""On an accelerator: kernels, compiled pieces and graphs against the plain path, and speculation against none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lossguard.records import Request
from lossguard_mechanisms.drafters.fresh import random_drafter
from lossguard_mechanisms.engine.acceleration import Acceleration
from lossguard_mechanisms.engine.core import EngineCore
from lossguard_mechanisms.engine.decoding import DecodeStage, Speculation
from lossguard_mechanisms.engine.fused_target import FusedTarget
from lossguard_mechanisms.engine.graphs import DecodeGraphs
from lossguard_mechanisms.engine.memory import Memory, MemorySizes
from lossguard_mechanisms.engine.speculation import ChainPolicy, Policy, SampleAndMatch
from lossguard_mechanisms.engine.w12_target import convert_target
from lossguard_mechanisms.targets.config import ATTENTION, DELTA, DeltaShape, TargetConfig
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.initial_weights import random_target
from lossguard_mechanisms.trees.policies import BestFirstPolicy, DynamicPolicy, StaticPolicy
from tests.mechanisms.engine.doubles import job_of, random_prompts, request

pytestmark = pytest.mark.gpu

LEAST_AGREEMENT = 0.9

CONFIG = TargetConfig(
    model_type="qwen3_5_text",
    vocab_size=512,
    hidden_size=256,
    intermediate_size=384,
    layer_types=(DELTA, DELTA, ATTENTION, DELTA, ATTENTION),
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    rotary_dim=16,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    max_position_embeddings=2048,
    tie_word_embeddings=True,
    delta=DeltaShape(num_key_heads=2, num_value_heads=4, key_dim=32, value_dim=32, conv_width=4),
)


def target_on_gpu() -> Target:
    """A small hybrid with large weights, so that replies vary."""
    target = random_target(CONFIG, seed=0)
    with torch.no_grad():
        for parameter in target.parameters():
            if parameter.dim() == 2:
                parameter.mul_(3.0)
    kept = {name: value for name, value in target.state_dict().items() if name.endswith(("decay_log", "decay_bias"))}
    target = target.to(device="cuda", dtype=torch.bfloat16).eval().requires_grad_(requires_grad=False)
    for name, value in kept.items():
        module, _, leaf = name.rpartition(".")
        setattr(target.get_submodule(module), leaf, torch.nn.Parameter(value.cuda(), requires_grad=False))
    return target


def core_on_gpu(
    target: Target, *, slots: int, acceleration: Acceleration, has_graphs: bool, policy: Policy | None = None
) -> EngineCore:
    """A core with or without what makes it fast."""
    speculation = None
    if policy is not None:
        drafter = random_drafter("dflash2", target, seed=1)
        speculation = Speculation(drafter=drafter, policy=policy, acceptance=SampleAndMatch())
    sizes = MemorySizes(
        num_slots=slots, num_pages=slots * 16, page_size=16, capacity=256,
        num_surplus=1 if policy is None else policy.num_nodes,
        dtype=torch.bfloat16, device=torch.device("cuda"), acceleration=acceleration,
    )  # fmt: skip
    memory = Memory(CONFIG, sizes, drafter=None if speculation is None else speculation.drafter)
    model = FusedTarget(target) if acceleration.is_compiled else target
    stage = DecodeStage(CONFIG, memory, speculation)
    graphs = DecodeGraphs(model, memory, stage) if has_graphs else None
    return EngineCore(model, memory, prefill_chunk=64, stage=stage, graphs=graphs)


def replies(core: EngineCore, requests: list[Request]) -> list[tuple[int, ...]]:
    """In the order of the requests."""
    for asked in requests:
        core.add(job_of(asked))
    found = {}
    while core.has_work:
        for ended in core.step():
            found[ended.job.request.id] = ended.output().ids
    core.check_integrity()
    return [found[asked.id] for asked in requests]


def agreement(plain: EngineCore, requests: list[Request], served: list[tuple[int, ...]]) -> float:
    """Share of served tokens that the plain path would serve too, given the tokens before them.

    Two bfloat16 paths part at near-ties, of which a model of random weights has many; after a difference the replies
    have nothing in common. Along one and the same reply only the near-ties themselves differ.
    """
    for asked, reply in zip(requests, served, strict=True):
        plain.add(replace(job_of(asked), forced_ids=reply))
    found = {}
    while plain.has_work:
        for ended in plain.step():
            found[ended.job.request.id] = ended.served
    pairs = [
        (own, other)
        for asked, reply in zip(requests, served, strict=True)
        for own, other in zip(found[asked.id], reply, strict=True)
    ]
    return sum(own == other for own, other in pairs) / len(pairs)


@pytest.mark.parametrize("slots", [1, 8, 32])
def test_fast_paths_serve_what_the_plain_path_serves(slots: int) -> None:
    target = target_on_gpu()
    prompts = random_prompts(min(32, 2 * slots + 2), seed=1, vocab_size=512)
    requests = [request(f"r{at}", prompt, 40 + at % 7) for at, prompt in enumerate(prompts)]
    plain = core_on_gpu(target, slots=slots, acceleration=Acceleration(), has_graphs=False)
    kernels, everything = Acceleration(has_kernels=True), Acceleration(has_kernels=True, is_compiled=True)
    best_first, without = (
        BestFirstPolicy(16, on_edges=True, num_depths=7, has_kernel=has_kernel) for has_kernel in (True, False)
    )
    cases: list[tuple[str, Acceleration, bool, Policy | None]] = [
        ("graphs", Acceleration(), True, None),
        ("kernels", kernels, False, None),
        ("kernels and graphs", kernels, True, None),
        ("all", everything, True, None),
        ("all, chain", everything, True, ChainPolicy(7)),
        ("plain, best-first", Acceleration(), False, without),
        ("kernels and graphs, best-first", kernels, True, best_first),
        ("kernels and graphs, DDTree of 63", kernels, True, BestFirstPolicy(63, on_edges=False, num_depths=7)),
        ("kernels and graphs, EAGLE-2", kernels, True, DynamicPolicy(16, on_edges=True, num_depths=7)),
        ("kernels and graphs, static", kernels, True, StaticPolicy(16, num_depths=7)),
    ]
    for name, acceleration, has_graphs, policy in cases:
        core = core_on_gpu(target, slots=slots, acceleration=acceleration, has_graphs=has_graphs, policy=policy)
        share = agreement(plain, requests, replies(core, requests))
        print(f"slots {slots}, {name}: {share:.3f} of the tokens are the plain path's own")  # noqa: T201
        assert share > LEAST_AGREEMENT, name


@pytest.mark.parametrize("slots", [1, 8])
def test_sampled_requests_in_graphs_get_what_the_host_draws(slots: int) -> None:
    target = target_on_gpu()
    prompts = random_prompts(2 * slots + 2, seed=1, vocab_size=512)
    requests = [
        request(f"r{at}", prompt, 40, temperature=(0.7, 0.0, 1.0)[at % 3], seed=17) for at, prompt in enumerate(prompts)
    ]
    fast = Acceleration(has_kernels=True, is_compiled=True)
    for name, policy in (("plain", None), ("best-first", BestFirstPolicy(16, on_edges=True, num_depths=7))):
        host, graphs = (
            core_on_gpu(target, slots=slots, acceleration=fast, has_graphs=has_graphs, policy=policy)
            for has_graphs in (False, True)
        )
        share = agreement(host, requests, replies(graphs, requests))
        print(f"slots {slots}, sampled, {name}: {share:.3f} of the tokens are those without graphs")  # noqa: T201
        assert share > LEAST_AGREEMENT, name


@pytest.mark.parametrize("slots", [1, 8, 32])
def test_w12_weights_serve_what_dense_ones_serve(slots: int) -> None:
    """Products by the fused kernel, with and without compiled pieces around them, in CUDA graphs."""
    prompts = random_prompts(min(32, 2 * slots + 2), seed=1, vocab_size=512)
    requests = [request(f"r{at}", prompt, 40) for at, prompt in enumerate(prompts)]
    plain = core_on_gpu(target_on_gpu(), slots=slots, acceleration=Acceleration(), has_graphs=False)
    coded = target_on_gpu()
    convert_target(coded)
    for is_compiled in (False, True):
        acceleration = Acceleration(has_kernels=True, is_compiled=is_compiled)
        core = core_on_gpu(coded, slots=slots, acceleration=acceleration, has_graphs=True)
        share = agreement(plain, requests, replies(core, requests))
        print(f"slots {slots}, compiled {is_compiled}: {share:.3f} of the tokens are dense weights' own")  # noqa: T201
        assert share > LEAST_AGREEMENT


def test_the_same_path_serves_the_same_twice() -> None:
    target = target_on_gpu()
    requests = [request(f"r{at}", prompt, 30) for at, prompt in enumerate(random_prompts(8, seed=1, vocab_size=512))]
    fast = Acceleration(has_kernels=True)
    runs = [replies(core_on_gpu(target, slots=8, acceleration=fast, has_graphs=True), requests) for _ in range(2)]
    assert runs[0] == runs[1]
