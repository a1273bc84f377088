"""Servers that misbehave on the wire: always an EngineError that says what came back, within the time allowed."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from lossguard.errors import EngineError
from lossguard.records import ServedOutput
from tests.engines.servers.conftest import make_engine, make_requests
from tests.engines.servers.dialect_writers import DONE, WRITERS, event
from tests.engines.servers.loopback import Loopback
from tests.engines.servers.raw_server import HEAD, JSON_HEAD, Action, Flood, Pause, Reset, raw_server
from tests.engines.servers.spoken import Asked, ToyModel

KINDS = ("sglang", "vllm", "llamacpp")
LIMITS: dict[str, Any] = {"connect_seconds": 2.0, "read_seconds": 1.0, "request_seconds": 3.0, "health": "/v1/models"}
LIMITS["stream"] = True  # also where whole replies are the default


def honest_events(kind: str) -> list[bytes]:
    """A stream that a well-behaved server sends."""
    asked = Asked(prompt_ids=(5, 6, 7, 8), max_tokens=12, stop_ids=(0,), stream=True)
    return [item.encode() for item in WRITERS[kind]().stream(ToyModel().speak(asked), asked, 3)]


def ask(model: str, kind: str, *actions: Action, **options: Any) -> EngineError:
    """The error that one request ends in, within its time."""
    with raw_server(*actions) as url:
        engine = make_engine(kind, model, url=url, **{**LIMITS, **options})
        started = time.monotonic()
        with pytest.raises(EngineError) as caught:
            list(engine.serve(make_requests(1)))
        assert time.monotonic() - started < 30
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
def test_the_honest_stream_is_read(toy_model: str, kind: str) -> None:
    with raw_server(HEAD, *honest_events(kind)) as url:
        outputs = list(make_engine(kind, toy_model, url=url, **LIMITS).serve(make_requests(1)))
    assert [len(output.ids) for output in outputs] == [12]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", range(4))
def test_a_stream_that_breaks_off_is_no_reply(toy_model: str, kind: str, keep: int) -> None:
    error = ask(toy_model, kind, HEAD, *honest_events(kind)[:keep])
    assert error.code == "LG0223"


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_in_the_middle_is_no_reply(toy_model: str, kind: str) -> None:
    assert ask(toy_model, kind, HEAD, *honest_events(kind)[:2], Reset()).code == "LG0220"


@pytest.mark.parametrize(
    ("actions", "code", "shown"),
    [
        ((Reset(),), "LG0220", "ReadError"),
        ((b"not HTTP at all\r\n\r\n",), "LG0220", "RemoteProtocolError"),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{",), "LG0220", "RemoteProtocolError"),
        ((b"HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\n\r\nslow down",), "LG0222", "429: slow down"),
        ((b"HTTP/1.1 500 Oops\r\nconnection: close\r\n\r\nstack trace",), "LG0222", "500: stack trace"),
        ((b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\nconnection: close\r\n\r\n",), "LG0222", "302"),
        ((b"HTTP/1.1 500 Oops\r\n\r\n", Flood(3_000_000)), "LG0222", "xxx ... ("),
        ((b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n", b"\x1f\x8b junk"), "LG0223", "compressed"),
        ((HEAD, b"data: {broken\n\n"), "LG0223", "not JSON"),
        ((HEAD, b"data: [1, 2]\n\n"), "LG0223", "$ is list, not an object"),
        ((HEAD, b"data: \xff\xfe\n\n"), "LG0223", "not JSON"),
        ((HEAD, b"data: " + b"[" * 100_000 + b"\n\n"), "LG0223", "not JSON: RecursionError"),
        ((HEAD, event({"error": {"message": "kaput"}}).encode()), "LG0223", "kaput"),
        ((HEAD, b"data: half an event"), "LG0223", "broke off within an event"),
        ((HEAD, Flood(100_000_000), b"\n\n"), "LG0224", "a line of"),
        ((HEAD, Pause(20)), "LG0221", "without a byte"),
        ((Pause(20),), "LG0221", "without a byte"),
        ((HEAD, *[item for _ in range(40) for item in (b": drip\n", Pause(0.2))]), "LG0221", "for one request"),
        ((*[item for _ in range(40) for item in (b"H", Pause(0.2))],), "LG0221", "for one request"),
    ],
)
def test_what_came_back_is_named(toy_model: str, actions: tuple[Action, ...], code: str, shown: str) -> None:
    error = ask(toy_model, "vllm", *actions)
    assert error.code == code, str(error)
    assert shown in str(error)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("", "not JSON"),
        ("null", "$ is null, not an object"),
        ("{}", "$ has no 'choices'"),
        ('{"choices": []}', "no usage"),
        ('{"choices": [{}, {}]}', "2 choices"),
        ('{"choices": [{"token_ids": [1.5], "text": ""}]}', "$.choices[0].token_ids[0] is float"),
        ('{"choices": [{"token_ids": [true], "text": ""}]}', "is bool, not a whole number"),
        ('{"choices": [{"token_ids": [' + "9" * 400 + '], "text": ""}]}', "is a whole number of"),
        ('{"choices": [{"token_ids": [' + "9" * 9_000 + '], "text": ""}]}', "not JSON: ValueError"),
        ('{"choices": [{"token_ids": "12", "text": ""}]}', "token_ids is str, not an array"),
        ('{"choices": [{"token_ids": [1], "text": null}]}', "text is null, not a string"),
        ('{"choices": [{"token_ids": [1], "text": "", "finish_reason": "tired"}]}', "'tired', which is no finish"),
        ('{"choices": [{"token_ids": [1], "text": "", "finish_reason": null}], "usage": null}', "no usage"),
        (
            '{"choices": [{"token_ids": [1], "text": ""}], "usage": {"prompt_tokens": 4, "completion_tokens": 1}}',
            "without a finish reason",
        ),
        (
            json.dumps({"choices": [{"token_ids": [1] * 5_000, "text": "", "finish_reason": "length"}]}),
            "5000 tokens for max_tokens = 12",
        ),
        (
            '{"choices": [{"token_ids": [1], "text": "", "logprobs": {"token_logprobs": [0], "top_logprobs": '
            '[{"token_id:x": 1}]}}]}',
            "the key 'token_id:x'",
        ),
    ],
)
def test_a_body_that_is_wrong_names_its_place(toy_model: str, body: str, shown: str) -> None:
    error = ask(toy_model, "vllm", JSON_HEAD, body.encode(), stream=False)
    assert error.code == "LG0223"
    assert shown in str(error)


def test_nothing_may_follow_the_end(toy_model: str) -> None:
    events = honest_events("vllm")
    assert "after [DONE]" in str(ask(toy_model, "vllm", HEAD, *events, events[0]))
    late = [*events[:-2], events[0], DONE.encode()]
    assert "after the finish reason" in str(ask(toy_model, "vllm", HEAD, *late))


def test_counts_that_contradict_a_stream_are_refused(toy_model: str) -> None:
    events = honest_events("sglang")
    assert "where completion_tokens is" in str(ask(toy_model, "sglang", HEAD, events[1], events[1], events[0]))


def test_every_reply_that_came_whole_is_kept_and_none_is_asked_twice(toy_model: str) -> None:
    with Loopback("vllm") as server:
        server.dies_after = 7
        engine = make_engine("vllm", toy_model, url=server.url, concurrency=3)
        kept: list[ServedOutput] = []
        with pytest.raises(EngineError, match="out of memory"):
            kept.extend(engine.serve(make_requests(30)))
        assert len(kept) == 7
        assert len(server.bodies) <= 10
        assert len({json.dumps(body["prompt"]) for body in server.bodies}) == len(server.bodies)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_refusal_in_the_middle_keeps_what_came_before_and_is_not_asked_again(toy_model: str, status: int) -> None:
    with Loopback("vllm") as server:

        def refuse_the_sixth(_body: dict[str, Any]) -> None:
            if len(server.bodies) == 5:
                server.statuses.append((status, "slow down"))

        server.scripted = refuse_the_sixth
        engine = make_engine("vllm", toy_model, url=server.url, concurrency=1)
        kept: list[ServedOutput] = []
        with pytest.raises(EngineError, match="slow down") as caught:
            kept.extend(engine.serve(make_requests(9)))
    assert caught.value.code == "LG0222"
    assert [output.request_id for output in kept] == ["r0", "r1", "r2", "r3", "r4"]
    assert len(server.bodies) == 6


def test_nobody_listening(toy_model: str) -> None:
    with raw_server() as url:
        pass
    engine = make_engine("vllm", toy_model, url=url, connect_seconds=0.5)
    with pytest.raises(EngineError, match="cannot be reached"):
        list(engine.serve(make_requests(1)))
