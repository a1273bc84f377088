"""A plain function as a system."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lossguard import systems
from lossguard.config import Config
from lossguard.engines.base import Engine, EngineSpec, ForcedPrefix
from lossguard.engines.callable_engine import create
from lossguard.errors import EngineError, UsageError
from lossguard.plan import Plan
from lossguard.records import FinishReason, Request, SamplingParams, ServedOutput

STOP_ID = 2


def make_request(name: str, *, max_tokens: int = 3, temperature: float = 0.0) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, stop_ids=(STOP_ID,), temperature=temperature)
    return Request(id=name, prompt_ids=(int(name) + 10,), sampling=sampling, set="s", cluster=name)


def engine_of(generate: Callable[..., Any], batch_size: int = 64) -> Engine:
    handle = systems.from_callable(generate, name="mine", batch_size=batch_size)
    return handle.create(EngineSpec(name="mine", model_path="unused"))


def serve(generate: Callable[..., Any], *requests: Request) -> list[ServedOutput]:
    return list(engine_of(generate).serve(requests))


def echo(prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
    return [[prompt[0]] * max_new_tokens for prompt in prompts]


def test_prompts_and_limits_reach_the_function() -> None:
    calls: list[tuple[list[list[int]], int]] = []

    def generate(prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        calls.append((prompts, max_new_tokens))
        return echo(prompts, max_new_tokens)

    requests = [make_request(str(index), max_tokens=3 + index % 2) for index in range(5)]
    outputs = list(engine_of(generate, batch_size=2).serve(requests))
    assert calls == [([[10], [12]], 3), ([[14]], 3), ([[11], [13]], 4)]
    assert {output.request_id: output.ids for output in outputs}["3"] == (13, 13, 13, 13)


@pytest.mark.parametrize(
    ("reply", "finish", "stop_reason"),
    [
        ([5, STOP_ID], FinishReason.STOP, STOP_ID),
        ([5, 6, STOP_ID], FinishReason.STOP, STOP_ID),
        ([5, 6, 7], FinishReason.LENGTH, None),
        ([5, 6], FinishReason.ABORT, None),
        ([5, 6, 7, 8], FinishReason.ABORT, None),
        ([], FinishReason.ABORT, None),
    ],
)
def test_finish_reasons_are_derived(reply: list[int], finish: FinishReason, stop_reason: int | None) -> None:
    (output,) = serve(lambda prompts, number: [reply], make_request("0"))
    assert (output.ids, output.finish_reason, output.stop_reason) == (tuple(reply), finish, stop_reason)
    assert len(output.arrival_ns) == len(reply)
    assert all(arrival >= output.sent_ns > 0 for arrival in output.arrival_ns)


@pytest.mark.parametrize(
    "replies",
    [[np.array([4, 5, 6])], [torch.tensor([4, 5, 6])], torch.tensor([[4, 5, 6]]), [[np.int32(4), torch.tensor(5), 6]]],
)
def test_numpy_and_torch_integers_are_taken(replies: Any) -> None:
    (output,) = serve(lambda prompts, number: replies, make_request("0"))
    assert output.ids == (4, 5, 6)
    assert all(type(token) is int for token in output.ids)


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        (None, "returned a NoneType"),
        ([], "0 replies to 1 prompts"),
        ([[1], [2]], "2 replies to 1 prompts"),
        (["text"], "a str as the reply to '0'"),
        ([7], "a int as the reply to '0'"),
        ([torch.tensor(7)], "the reply to '0'"),
        ([[1.0]], "1.0 in the reply"),
        ([[True]], "True in the reply"),
        ([[np.float32(1)]], "in the reply"),
        ([[-1]], "negative id -1"),
    ],
)
def test_other_values_are_refused(replies: Any, words: str) -> None:
    with pytest.raises(EngineError) as caught:
        serve(lambda prompts, number: replies, make_request("0"))
    assert caught.value.code == "LG0215"
    assert words in caught.value.found


def test_an_error_of_the_function_is_told_and_chained() -> None:
    def generate(prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        raise ZeroDivisionError("no")

    with pytest.raises(EngineError, match="ZeroDivisionError: no") as caught:
        serve(generate, make_request("0"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_sampling_is_refused_before_the_function_runs() -> None:
    def generate(prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        raise AssertionError("called")

    with pytest.raises(UsageError, match="temperature"):
        engine_of(generate).serve([make_request("0", temperature=1.0)])


def test_there_is_no_forced_decode() -> None:
    engine = engine_of(echo)
    assert not engine.capabilities.forced_decode
    with pytest.raises(EngineError, match="function"):
        engine.forced_decode([ForcedPrefix(request=make_request("0"), served_ids=(1,), num_positions=1)])
    engine.close()


class Talkative:
    """A system that can be decoded along replies, and tells what is behind it."""

    def __init__(self, rows: list[list[int]] | None = None) -> None:
        self.rows = rows

    def __call__(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        return echo(prompts, max_new_tokens)

    def forced_decode(self, prompts: list[list[int]], replies: list[list[int]]) -> list[list[int]]:
        asked = zip(prompts, replies, strict=True)
        return [[prompt[0] + token for token in reply] for prompt, reply in asked] if self.rows is None else self.rows

    def fingerprint(self) -> dict[str, Any]:
        return {"version": 3, "engine": "mine", "host": {"cpu.model": "elsewhere"}}


def test_an_object_is_decoded_along_replies() -> None:
    engine = engine_of(Talkative())
    assert engine.capabilities.forced_decode
    prefixes = [
        ForcedPrefix(request=make_request("0"), served_ids=(1, 2, 3), num_positions=2),
        ForcedPrefix(request=make_request("5"), served_ids=(4,), num_positions=1),
    ]
    assert engine.forced_decode(prefixes) == [(11, 12), (19,)]


@pytest.mark.parametrize("rows", [[], [[1.5]], [["a"]], [[-1]]])
def test_decode_of_an_object_is_checked(rows: list[list[int]]) -> None:
    with pytest.raises(EngineError, match="LG0215"):
        engine_of(Talkative(rows)).forced_decode(
            [ForcedPrefix(request=make_request("0"), served_ids=(1,), num_positions=1)]
        )


def test_an_object_tells_what_is_behind_it_but_not_another_kind_of_engine() -> None:
    facts = engine_of(Talkative(), batch_size=2).fingerprint()
    assert (facts["version"], facts["engine"], facts["batch_size"]) == (3, "callable", 2)
    assert facts["host"] == {"cpu.model": "elsewhere"}
    assert facts["target"].endswith(":Talkative")


def test_a_plan_takes_the_handle() -> None:
    handle = systems.from_callable(echo, name="patch-41", expect={"diverging": True})
    plan = Plan(Config(model="m", systems={}), baseline=systems.from_callable(echo, name="stock"), candidates=[handle])
    assert [system.name for system in plan.systems] == ["patch-41"]
    assert plan.handle("patch-41") is handle
    assert handle.config.expect == {"diverging": True}


def test_the_form_in_a_configuration() -> None:
    options = {"target": "json:loads", "batch_size": 2, "logit_dtype": "bfloat16"}
    engine = create(EngineSpec(name="mine", model_path="unused", options=options))
    assert engine.capabilities.concurrency == 2
    assert engine.capabilities.logit_dtype == "bfloat16"
    assert engine.fingerprint()["target"] == "json:loads"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, "LG0204"),
        ({"target": "json"}, "LG0204"),
        ({"tagret": "json:loads"}, "LG0204"),
        ({"target": "json:no_such"}, "LG0205"),
        ({"target": "no_such_module:x"}, "LG0205"),
    ],
)
def test_a_target_that_cannot_be_found_is_refused(options: dict[str, str], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        create(EngineSpec(name="mine", model_path="unused", options=options))
    assert caught.value.code == code
