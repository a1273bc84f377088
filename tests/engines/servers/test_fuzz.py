"""Hostile replies through the parsers: either a well-formed output or one kind of error, whatever arrives."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lossguard.engines.servers.dialect import Dialect
from lossguard.engines.servers.event_stream import EventStream, OversizedError
from lossguard.engines.servers.json_view import parse_json
from lossguard.engines.servers.llamacpp_dialect import LlamacppDialect
from lossguard.engines.servers.openai_dialect import OpenaiDialect
from lossguard.engines.servers.problems import MalformedReplyError
from lossguard.engines.servers.sglang_dialect import SglangDialect
from lossguard.engines.servers.vllm_dialect import VllmDialect
from lossguard.records import ServedOutput
from lossguard.stages.validation import scorable, validated
from tests.engines.servers.conftest import make_requests
from tests.engines.servers.dialect_writers import WRITERS
from tests.engines.servers.spoken import REPLY_FAULTS, Asked, ToyModel

KINDS = ("sglang", "vllm", "llamacpp", "openai")
FAST, FULL = 60, 2_500  # of each kind; the full number makes 10,000
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    10**400,
    1e308,
    0.5,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "stop",
    "token_id:-1",
    "\ud800",
    "\x00",
    "w7 w8",
    [],
    [[]],
    [1, "a", None],
    {},
    {"type": "stop"},
    {"": {}},
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(VALUES),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def dialect(kind: str, model: str) -> Dialect:
    made: dict[str, Dialect] = {
        "sglang": SglangDialect(),
        "vllm": VllmDialect(),
        "llamacpp": LlamacppDialect(),
        "openai": OpenaiDialect(model),
    }
    return made[kind]


def messages(kind: str, *, stream: bool, fault: str | None = None) -> list[Any]:
    """What an honest server sends, or one with a fault of the contract."""
    asked = Asked(prompt_ids=(5, 6, 7, 8), max_tokens=12, stop_ids=(0,), num_top=3, stream=stream)
    faults = () if fault is None else (REPLY_FAULTS[fault],)
    writer, spoken = WRITERS[kind](), ToyModel(reply_faults=faults).speak(asked)
    if not stream:
        return [writer.whole(spoken, asked)]
    lines = [line.removeprefix("data: ").strip() for line in writer.stream(spoken, asked, 3)]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


@st.composite
def hostile(draw: st.DrawFn, kind: str) -> list[Any]:
    """Messages with members replaced, removed or doubled, and with messages dropped, doubled or swapped."""
    fault = draw(st.none() | st.sampled_from(sorted(REPLY_FAULTS)))
    sent = messages(kind, stream=draw(st.booleans()), fault=fault)
    for _ in range(draw(st.integers(0, 4))):
        number = draw(st.integers(0, len(sent) - 1))
        match draw(st.sampled_from(("replace", "remove", "double", "drop", "repeat", "swap", "junk"))):
            case "drop" if len(sent) > 1:
                del sent[number]
            case "repeat":
                sent.insert(number, copy.deepcopy(sent[number]))
            case "swap":
                sent.insert(0, sent.pop(number))
            case "junk":
                sent[number] = copy.deepcopy(draw(JSON))
            case action:
                _change(draw, sent[number], action)
    return sent


def _change(draw: st.DrawFn, message: Any, action: str) -> None:
    paths = list(places(message))
    if not paths:
        return
    *parents, last = draw(st.sampled_from(paths))
    holder = message
    for key in parents:
        holder = holder[key]
    if action == "remove":
        del holder[last]
    elif action == "double" and isinstance(holder, list):
        holder.insert(last, copy.deepcopy(holder[last]))
    else:
        holder[last] = copy.deepcopy(draw(st.sampled_from(VALUES) | JSON))


def read(made: Dialect, sent: Sequence[Any], *, logprobs: int) -> ServedOutput | None:
    """The output, or None if the reply was refused as malformed; anything else that is raised fails the test."""
    reader = made.reader(make_requests(1, logprobs=logprobs)[0], stream=True)
    try:
        for at, message in enumerate(sent):
            raw = json.dumps(message).encode("utf-8", "backslashreplace")
            reader.feed(parse_json(raw), at + 1)
        return reader.output(0)
    except MalformedReplyError:
        return None


def check_hostile(kind: str, model: str) -> Callable[[list[Any]], None]:
    made = dialect(kind, model)

    def check(sent: list[Any]) -> None:
        output = read(made, sent, logprobs=3)
        if output is None:
            return
        kept = validated(output)
        again = ServedOutput.from_json(json.loads(json.dumps(kept.to_json(), allow_nan=False)))
        assert again.ids == kept.ids
        assert len(kept.arrival_ns) == len(kept.ids) <= 4 * 12 + 1_025
        assert len(scorable(kept).ids) == len(kept.ids)

    return check


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [FAST, pytest.param(FULL, marks=pytest.mark.slow)])
def test_whatever_is_sent(kind: str, number: int, toy_model: str) -> None:
    check = check_hostile(kind, toy_model)
    settings(max_examples=number, deadline=None)(given(hostile(kind))(check))()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [True, False])
def test_the_honest_reply_is_no_hostile_one(kind: str, toy_model: str, *, stream: bool) -> None:
    output = read(dialect(kind, toy_model), messages(kind, stream=stream), logprobs=3)
    assert output is not None
    assert len(output.ids) == 12


@given(st.binary(max_size=200))
def test_any_bytes_are_json_or_malformed(raw: bytes) -> None:
    try:
        json.loads(raw)
    except ValueError:
        with pytest.raises(MalformedReplyError, match="not JSON"):
            parse_json(raw)
    else:
        assert parse_json(raw).path == "$"


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=20), max_size=6), st.data())
def test_events_do_not_depend_on_how_the_stream_is_cut(texts: list[str], data: st.DataObject) -> None:
    ends = data.draw(st.lists(st.sampled_from(["\n", "\r\n"]), min_size=len(texts), max_size=len(texts)))
    raw = "".join(f": note{end}data: {text}{end}{end}" for text, end in zip(texts, ends, strict=True)).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    stream, found = EventStream(), []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        found += list(stream.feed(raw[start:end]))
    assert found == [text.encode() for text in texts]
    assert stream.is_between_events


def test_lines_and_events_are_bounded() -> None:
    with pytest.raises(OversizedError):
        list(EventStream(line_bytes=100).feed(b"x" * 101))
    with pytest.raises(OversizedError):
        list(EventStream(line_bytes=100).feed(b"data: " + b"x" * 100 + b"\n"))
    with pytest.raises(OversizedError):
        list(EventStream(line_bytes=100).feed(b"data: aaaaaaaaaaaaaaaaaaaaaaaaaaaa\n" * 5))
    assert list(EventStream(line_bytes=100).feed(b"data: a\ndata: b\n\n")) == [b"a\nb"]
