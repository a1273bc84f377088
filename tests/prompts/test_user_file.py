"""The user's own prompts: what is read, and how each slip is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lossguard.errors import UsageError
from lossguard.prompts.base import Message
from lossguard.prompts.user_file import read_user_file

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records))
    return path


def test_all_forms_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mine.jsonl",
        {"messages": [{"role": "system", "content": "s"}, USER], "id": "first", "set": "tools", "tools": [TOOL]},
        "",
        {"prompt": "as it stands"},
        {"prompt_ids": [5, 0, 7], "set": "raw"},
    )
    prompts, notes = read_user_file(path)
    assert [prompt.id for prompt in prompts] == ["first", "mine-001", "mine-002"]
    assert [prompt.set for prompt in prompts] == ["tools", "mine", "raw"]
    assert prompts[0].messages == (Message(role="system", content="s"), Message(role="user", content="Hi"))
    assert prompts[0].tools == (TOOL,)
    assert prompts[1].text == "as it stands"
    assert prompts[2].ids == (5, 0, 7)
    assert notes == ["mine.jsonl: 3 prompts (JSONL)"]


def test_text_parts_are_joined_and_tool_turns_kept(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {}}}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "c1", "name": "f"},
    ]
    (prompt,), _ = read_user_file(write(tmp_path / "a.jsonl", {"messages": turns}))
    assert prompt.messages == (
        Message(role="user", content="one two"),
        Message(role="assistant", content="", tool_calls=(call,)),
        Message(role="tool", content="42", tool_call_id="c1", name="f"),
    )


@pytest.mark.parametrize(
    ("record", "code", "message"),
    [
        ("{not json", "LG0412", "a.jsonl:2: field '(whole line)' is no JSON"),
        ([1], "LG0412", "a.jsonl:2: field '(whole line)' must be an object, found list"),
        ({"id": "x"}, "LG0412", "a.jsonl:2: field 'prompt' is missing"),
        ({"prompt": "a", "prompt_ids": [1]}, "LG0412", "field 'prompt_ids' stands beside 'prompt'"),
        ({"prompt": 3}, "LG0412", "field 'prompt' must be text, found int"),
        ({"prompt": "  "}, "LG0412", "field 'prompt' is empty"),
        ({"prompt": "a", "id": "x y"}, "LG0412", "field 'id' is 'x y'"),
        ({"prompt": "a", "id": "x#1"}, "LG0412", "field 'id' is 'x#1'"),
        ({"prompt": "a", "id": 7}, "LG0412", "field 'id' must be text, found int"),
        ({"prompt": "a", "set": ""}, "LG0412", "field 'set' is empty"),
        ({"prompt": "a", "tools": [TOOL]}, "LG0412", "field 'tools' needs 'messages'"),
        ({"messages": [USER], "tools": TOOL}, "LG0412", "field 'tools' must be a list of objects"),
        ({"prompt_ids": []}, "LG0412", "field 'prompt_ids' must be a list"),
        ({"prompt_ids": [1, 2.5]}, "LG0412", "field 'prompt_ids' must hold whole numbers"),
        ({"prompt_ids": [True]}, "LG0412", "field 'prompt_ids' must hold whole numbers"),
        ({"messages": []}, "LG0412", "field 'messages' is an empty list"),
        ({"messages": "hi"}, "LG0412", "field 'messages' must be a list of objects"),
        ({"messages": [{"content": "a"}]}, "LG0412", "field 'messages[0].role' must be text, found nothing"),
        ({"messages": [USER, {"role": "user"}]}, "LG0412", "field 'messages[1].content' must be text, found nothing"),
        ({"messages": [USER, {"role": "assistant", "content": "b"}]}, "LG0412", "ends with the assistant's turn"),
        ({"promt": "a"}, "LG0413", "field 'promt' is unknown. Did you mean 'prompt'?"),
        ({"messages": [{**USER, "contents": ""}]}, "LG0413", "field 'messages[0].contents' is unknown"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]},
            "LG0414",
            "field 'messages[0].content[1]' is of type 'image_url'",
        ),
    ],
)
def test_every_slip_names_line_and_field(tmp_path: Path, record: Any, code: str, message: str) -> None:
    path = write(tmp_path / "a.jsonl", {"prompt": "fine"}, record)
    with pytest.raises(UsageError) as caught:
        read_user_file(path)
    assert caught.value.code == code
    assert message in caught.value.found
    assert caught.value.found.startswith("a.jsonl:2: ")


def test_sharegpt_keeps_everything_up_to_the_last_user_turn(tmp_path: Path) -> None:
    def turn(sender: str, value: str) -> dict[str, str]:
        return {"from": sender, "value": value}

    entries = [
        {"id": "x", "conversations": [turn("human", "a"), turn("gpt", "b"), turn("human", "c"), turn("gpt", "d")]},
        {"conversations": [turn("system", "s"), turn("user", "e")], "source": "web"},
        {"conversations": [turn("gpt", "f"), turn("human", "g")]},
        {"conversations": []},
    ]
    path = tmp_path / "share.json"
    path.write_text(json.dumps(entries, indent=1))
    prompts, notes = read_user_file(path)
    assert [[(message.role, message.content) for message in prompt.messages or ()] for prompt in prompts] == [
        [("user", "a"), ("assistant", "b"), ("user", "c")],
        [("system", "s"), ("user", "e")],
    ]
    assert [prompt.id for prompt in prompts] == ["share-000", "share-001"]
    assert notes == [
        "share.json: 2 prompts (ShareGPT conversations)",
        "share.json: fields not used: source",
        "share.json: 2 of 4 conversations left out: no user turn at the start",
    ]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"conversation": []}], "a.json, entry 1: field 'conversations' is missing"),
        ([{"conversations": [{"from": "humann", "value": "a"}]}], "is 'humann'. Did you mean 'human'?"),
        (
            [{"conversations": [{"from": "human", "value": 3}]}],
            "field 'conversations[0].value' must be text, found int",
        ),
        ([{"conversations": []}], "holds no usable prompt"),
    ],
)
def test_sharegpt_slips(tmp_path: Path, entries: Any, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(entries))
    with pytest.raises(UsageError) as caught:
        read_user_file(path)
    assert caught.value.code == "LG0412"
    assert message in caught.value.found


def test_broken_lists_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[\n{]\n")
    with pytest.raises(UsageError, match=r"a\.json:2: "):
        read_user_file(path)


@pytest.mark.parametrize("data", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "a.jsonl"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(UsageError, match="cannot be read") as caught:
        read_user_file(path)
    assert caught.value.code == "LG0411"


def test_an_empty_file_holds_no_prompt(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no usable prompt") as caught:
        read_user_file(write(tmp_path / "a.jsonl", ""))
    assert caught.value.code == "LG0412"
