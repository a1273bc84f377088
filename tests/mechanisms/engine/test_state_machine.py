"""Requests come, go and are cancelled in any order: every slot and page keeps one owner, every reply is right."""

from __future__ import annotations

from functools import cache

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lossguard.records import Request
from lossguard_mechanisms.engine.core import EngineCore
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.trees.names import BEST_FIRST
from tests.mechanisms.engine.doubles import (
    branching_speculation,
    core_of,
    job_of,
    knowing_speculation,
    random_prompts,
    request,
    serve,
)
from tests.mechanisms.targets.tiny import pair

NUM_PROMPTS = 6


@cache
def _target() -> Target:
    return pair("qwen3_5_text").ours


@cache
def _expected() -> dict[tuple[int, ...], tuple[int, ...]]:
    """Each prompt's reply, served alone."""
    asked = [request(f"e{at}", prompt, 9) for at, prompt in enumerate(random_prompts(NUM_PROMPTS, seed=4, longest=12))]
    return {item.prompt_ids: serve(core_of(_target(), slots=1), [item])[item.id] for item in asked}


class EngineMachine(RuleBasedStateMachine):
    """A core of few slots and few pages, so that requests wait for either."""

    is_speculative = False
    policy = ""

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)
        speculation = knowing_speculation(_expected(), num_drafts=3) if self.is_speculative else None
        if self.policy:
            speculation = branching_speculation(_expected(), self.policy, num_nodes=6)
        self.core: EngineCore = core_of(_target(), slots=3, pages=14, chunk=5, speculation=speculation)
        self.live: dict[str, Request] = {}
        self.count = 0

    @rule(which=st.integers(0, NUM_PROMPTS - 1), max_tokens=st.integers(1, 9))
    def add(self, which: int, max_tokens: int) -> None:
        asked = request(f"r{self.count}", list(_expected())[which], max_tokens)
        self.count += 1
        self.live[asked.id] = asked
        self.core.add(job_of(asked))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        assert self.core.cancel(name)
        assert not self.core.cancel(name)
        del self.live[name]

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            for ended in self.core.step():
                asked = self.live.pop(ended.job.request.id)
                whole = _expected()[asked.prompt_ids]
                assert ended.output().ids == whole[: asked.sampling.max_tokens]

    @invariant()
    def integrity_holds(self) -> None:
        self.core.check_integrity()

    def teardown(self) -> None:
        for _ in range(400):
            if not self.core.has_work:
                break
            self.step(1)
        assert not self.live, "a request was lost"
        assert not self.core.has_work
        self.core.check_integrity()


class SpeculativeMachine(EngineMachine):
    """The same with drafts."""

    is_speculative = True


class TreeMachine(EngineMachine):
    """The same with trees."""

    policy = BEST_FIRST


SETTINGS = settings(max_examples=8, stateful_step_count=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TestEngine = EngineMachine.TestCase
TestEngine.settings = SETTINGS
TestSpeculativeEngine = SpeculativeMachine.TestCase
TestSpeculativeEngine.settings = SETTINGS
TestTreeEngine = TreeMachine.TestCase
TestTreeEngine.settings = SETTINGS
