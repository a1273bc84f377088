"""What is sent and what becomes of the reply, dialect by dialect."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lossguard.engines.servers.reply import PROMPT_DIFFERS, STOP_APPENDED
from lossguard.errors import UsageError
from lossguard.records import FinishReason, ServedOutput
from tests.engines.servers.conftest import make_engine, make_requests
from tests.engines.servers.loopback import Loopback
from tests.engines.servers.spoken import (
    REPLY_FAULTS,
    Asked,
    Spoken,
    ToyModel,
    missing_logprobs,
    nan_logprobs,
    stripped_stop,
    wrong_usage,
)
from tests.gate.toy import STOP_ID, Step

IDS = ("sglang", "vllm", "llamacpp")


def serve(model: str, kind: str, toy: ToyModel | None = None, *, count: int = 8, **options: Any) -> list[ServedOutput]:
    sampling = options.pop("sampling", {})
    with Loopback(kind, toy) as server:
        engine = make_engine(kind, model, url=server.url, **options)
        outputs = {output.request_id: output for output in engine.serve(make_requests(count, **sampling))}
    return [outputs[request.id] for request in make_requests(count)]


def stopping(step: Step) -> None:
    """Every other reply stops after 7 tokens."""
    if step.position == 6 and step.request.prompt_ids[0] % 2:
        step.logits[STOP_ID] += 50.0


@pytest.mark.parametrize("kind", IDS)
def test_streams_and_whole_replies_agree(toy_model: str, kind: str) -> None:
    sampling = {"max_tokens": 16, "logprobs": 3}
    streamed = serve(toy_model, kind, ToyModel(faults=(stopping,)), stream=True, metrics=False, sampling=sampling)
    whole = serve(toy_model, kind, ToyModel(faults=(stopping,)), stream=False, metrics=False, sampling=sampling)
    for one, other in zip(streamed, whole, strict=True):
        for name in ("ids", "text", "finish_reason", "stop_reason", "logprobs", "usage", "telemetry"):
            assert getattr(one, name) == getattr(other, name), name
        assert len(one.arrival_ns) == len(other.arrival_ns) == len(one.ids)
        assert one.sent_ns < one.arrival_ns[0] <= one.arrival_ns[-1]
        assert list(one.arrival_ns) == sorted(one.arrival_ns)
        assert len(set(other.arrival_ns)) == 1
    assert any(output.finish_reason is FinishReason.STOP for output in streamed)
    assert any(output.finish_reason is FinishReason.LENGTH for output in streamed)


def test_all_dialects_tell_the_same_reply(toy_model: str) -> None:
    sampling = {"max_tokens": 16, "logprobs": 3}
    per_kind = [serve(toy_model, kind, ToyModel(faults=(stopping,)), sampling=sampling) for kind in IDS]
    for outputs in zip(*per_kind, strict=True):
        assert len({output.ids for output in outputs}) == 1
        assert len({output.logprobs for output in outputs}) == 1
        assert len({(output.text, output.finish_reason) for output in outputs}) == 1
    text_only = serve(toy_model, "openai", ToyModel(faults=(stopping,)), sampling={"max_tokens": 16})
    assert [output.ids for output in text_only] == [output.ids for output in per_kind[0]]


@pytest.mark.parametrize("kind", IDS)
def test_a_stripped_stop_token_is_put_back(toy_model: str, kind: str) -> None:
    kept = serve(toy_model, kind, ToyModel(faults=(stopping,)))
    stripped = serve(toy_model, kind, ToyModel(faults=(stopping,), reply_faults=(stripped_stop,)))
    assert sum(output.finish_reason is FinishReason.STOP for output in stripped) == 4
    for one, other in zip(kept, stripped, strict=True):
        assert one.ids == other.ids
        assert len(other.arrival_ns) == len(other.ids)
        assert (STOP_APPENDED in other.telemetry) == (other.finish_reason is FinishReason.STOP)
        assert STOP_APPENDED not in one.telemetry


@pytest.mark.parametrize("kind", IDS)
def test_odd_values_are_kept_for_the_checks(toy_model: str, kind: str) -> None:
    asking: dict[str, Any] = {"sampling": {"logprobs": 2}, "count": 1}
    (nan,) = serve(toy_model, kind, ToyModel(reply_faults=(nan_logprobs,)), **asking)
    assert nan.logprobs is not None
    assert math.isnan(nan.logprobs.served[2])
    (short,) = serve(toy_model, kind, ToyModel(reply_faults=(missing_logprobs,)), **asking)
    assert short.logprobs is not None
    if kind == "llamacpp":  # its rows name their tokens, so that the place is known
        assert math.isnan(short.logprobs.served[-1])
        assert short.logprobs.top_ids[-1] == ()
    else:
        assert len(short.logprobs.served) == len(short.ids) - 1
    (usage,) = serve(toy_model, kind, ToyModel(reply_faults=(wrong_usage,)), **asking)
    assert usage.usage is not None
    assert usage.usage.completion_tokens == len(usage.ids) + 2
    (far,) = serve(toy_model, kind, ToyModel(reply_faults=(far_id,)), **asking)
    assert far.ids[1] == 2**40


def far_id(spoken: Spoken, _asked: Asked) -> Spoken:
    return replace(spoken, ids=(spoken.ids[0], 2**40, *spoken.ids[2:]))


def test_another_prompt_than_ours_is_noted(toy_model: str) -> None:
    (output,) = serve(toy_model, "vllm", ToyModel(reply_faults=(REPLY_FAULTS["other_prompt"],)), count=1)
    assert output.telemetry[PROMPT_DIFFERS] == (1.0,)
    (honest,) = serve(toy_model, "vllm", count=1)
    assert honest.telemetry[PROMPT_DIFFERS] == (0.0,)


def test_a_stop_string_is_no_stop_token(toy_model: str) -> None:
    def by_string(spoken: Spoken, _asked: Asked) -> Spoken:
        return replace(spoken, finish="stop", matched="w7")

    for kind in IDS:
        sampling = {"stop_strings": ("w7",)}
        (output,) = serve(toy_model, kind, ToyModel(reply_faults=(by_string,)), count=1, sampling=sampling)
        assert output.stop_reason == "w7"
        assert STOP_APPENDED not in output.telemetry


def body_of(model: str, kind: str, **sampling: Any) -> dict[str, Any]:
    with Loopback(kind) as server:
        list(make_engine(kind, model, url=server.url).serve(make_requests(1, **sampling)))
        return server.bodies[0]


def test_every_parameter_is_written_out(toy_model: str) -> None:
    asked = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "stop_strings": ("END",),
        "logit_bias": ((7, 1.5),),
        "seed": 11,
        "grammar": 'json:{"type": "object"}',
    }
    vllm = body_of(toy_model, "vllm", **asked)
    assert vllm["structured_outputs"] == {"json": {"type": "object"}}
    assert (vllm["top_k"], vllm["logit_bias"], vllm["seed"], vllm["stop"]) == (5, {"7": 1.5}, 11, ["END"])
    sglang = body_of(toy_model, "sglang", **asked)["sampling_params"]
    assert (sglang["json_schema"], sglang["stop"], sglang["sampling_seed"]) == ('{"type": "object"}', ["END"], 11)
    llama = body_of(toy_model, "llamacpp", **asked)
    assert llama["samplers"] == ["penalties", "temperature", "top_k", "top_p", "min_p"]
    assert llama["logit_bias"] == [[7, 1.5]]
    assert body_of(toy_model, "vllm", min_tokens=2)["min_tokens"] == 2
    assert body_of(toy_model, "sglang", min_tokens=2)["sampling_params"]["min_new_tokens"] == 2


def test_greedy_requests_leave_nothing_to_the_servers_defaults(toy_model: str) -> None:
    vllm = body_of(toy_model, "vllm")
    plain = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "n": 1}
    assert {key: vllm[key] for key in plain} == plain
    sglang = body_of(toy_model, "sglang")["sampling_params"]
    assert {key: sglang[key] for key in plain} == plain
    assert body_of(toy_model, "llamacpp")["samplers"] == ["temperature"]


def test_under_ignore_eos_no_stop_id_is_sent_and_none_put_back(toy_model: str) -> None:
    assert body_of(toy_model, "vllm", ignore_eos=True)["stop_token_ids"] == []
    outputs = serve(toy_model, "vllm", ToyModel(faults=(stopping,)), sampling={"ignore_eos": True})
    assert {len(output.ids) for output in outputs} == {12}
    assert sum(STOP_ID in output.ids for output in outputs) == 4


@pytest.mark.parametrize(
    ("kind", "sampling", "shown"),
    [
        ("vllm", {"n": 2}, "expand n into repeats"),
        ("vllm", {"bad_words": ((1, 2),)}, "bad_words"),
        ("llamacpp", {"min_tokens": 3}, "min_tokens"),
        ("openai", {"top_k": 3}, "top_k"),
        ("openai", {"logprobs": 2}, "logprobs = 2"),
        ("sglang", {"logprobs": 21}, "at most 20"),
        ("vllm", {"grammar": "yaml:x"}, "LG0233"),
        ("llamacpp", {"grammar": "regex:a+"}, "LG0233"),
    ],
)
def test_what_a_server_cannot_be_told_is_refused(
    toy_model: str, kind: str, sampling: dict[str, Any], shown: str
) -> None:
    with pytest.raises(UsageError, match=shown):
        serve(toy_model, kind, count=1, sampling=sampling)


def test_requests_run_side_by_side_up_to_the_concurrency(toy_model: str) -> None:
    with Loopback("vllm", delay=0.05) as server:
        assert len(list(make_engine("vllm", toy_model, url=server.url, concurrency=4).serve(make_requests(12)))) == 12
        assert server.most_at_once == 4
    with Loopback("vllm", delay=0.05) as server:
        list(make_engine("vllm", toy_model, url=server.url, concurrency=4, stagger_seconds=0.2).serve(make_requests(4)))
        assert server.most_at_once == 1


def test_giving_up_cancels_what_is_under_way(toy_model: str) -> None:
    with Loopback("vllm", delay=0.2) as server:
        replies = make_engine("vllm", toy_model, url=server.url, concurrency=2).serve(make_requests(50))
        next(iter(replies))
        replies.close()  # type: ignore[attr-defined]
        assert len(server.bodies) <= 6


def test_the_model_is_the_only_one_listed_or_the_configured_one(toy_model: str) -> None:
    assert body_of(toy_model, "vllm")["model"] == "toy"
    with Loopback("vllm") as server:
        list(make_engine("vllm", toy_model, url=server.url, model_name="mine").serve(make_requests(1)))
        assert server.bodies[0]["model"] == "mine"
        server.models = ["a", "b"]
        with pytest.raises(UsageError, match="lists 2 models"):
            list(make_engine("vllm", toy_model, url=server.url).serve(make_requests(1)))
