"""Prompts from the user's own file: JSONL, or a ShareGPT list of conversations."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossguard.errors import UsageError, near_miss
from lossguard.prompts.base import Message, Prompt

FIELDS = ("id", "prompt", "messages", "prompt_ids", "tools", "set")
_MESSAGE_FIELDS = ("role", "content", "name", "tool_call_id", "tool_calls")
_SHAREGPT_ROLES: Mapping[str, str] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
}
_IDENTIFIER = re.compile(r"[^\s#]+")  # '#' separates the number of a repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where something stands in a file, for messages."""

    file: str
    line: int
    unit: str = "line"

    def error(self, field: str, problem: str, *, code: str = "LG0412", fix: str | None = None) -> UsageError:
        where = f"{self.file}:{self.line}" if self.unit == "line" else f"{self.file}, {self.unit} {self.line}"
        return UsageError(
            f"{where}: field {field!r} {problem}",
            why="a prompt that is left out or read differently changes what a verdict says",
            fix=fix or f"correct that {self.unit}; fields are {', '.join(FIELDS)}",
            code=code,
        )


def read_user_file(path: Path) -> tuple[list[Prompt], list[str]]:
    """All prompts of a file and notes of what was read or left out.

    JSONL: one object per line with exactly one of ``messages`` (through the chat template), ``prompt`` (text as it
    stands, without template) and ``prompt_ids``; and optionally ``id``, ``set`` and ``tools``. A file that begins
    with ``[`` is a ShareGPT list: ``[{"conversations": [{"from": "human", "value": "..."}, ...]}, ...]``, of which
    everything up to the last user turn is the prompt. Raises UsageError: LG0411 (not readable), LG0412 (malformed),
    LG0413 (unknown field), LG0414 (images or audio).
    """
    text = _text_of(path)
    is_list = text.lstrip().startswith("[")
    prompts, notes = _read_sharegpt(path, text) if is_list else _read_jsonl(path, text)
    if not prompts:
        raise _Place(file=path.name, line=1).error("messages", "is in no line: the file holds no usable prompt")
    kind = "ShareGPT conversations" if is_list else "JSONL"
    return prompts, [f"{path.name}: {len(prompts)} prompts ({kind})", *notes]


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the prompt file {path} cannot be read: {error}",
            why="the run was told to use these prompts",
            fix="check the path (it is relative to the configuration file) and that the file is UTF-8",
            code="LG0411",
        ) from error


def _read_jsonl(path: Path, text: str) -> tuple[list[Prompt], list[str]]:
    prompts: list[Prompt] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        place = _Place(file=path.name, line=number)
        try:
            record = json.loads(line)
        except ValueError as error:
            raise place.error("(whole line)", f"is no JSON: {error}") from error
        if not isinstance(record, dict):
            raise place.error("(whole line)", f"must be an object, found {type(record).__name__}")
        prompts.append(_prompt_of(record, place, default_id=f"{path.stem}-{len(prompts):03d}", default_set=path.stem))
    return prompts, []


def _prompt_of(record: Mapping[str, Any], place: _Place, *, default_id: str, default_set: str) -> Prompt:
    _refuse_unknown(record, FIELDS, place)
    given = [name for name in ("prompt", "messages", "prompt_ids") if record.get(name) is not None]
    if len(given) != 1:
        raise place.error(
            given[1] if given else "prompt",
            f"stands beside {given[0]!r}; exactly one form is needed" if given else "is missing, and so are the others",
        )
    identifier = _identifier(record.get("id", default_id), place)
    set_name = _text(record.get("set", default_set), "set", place)
    tools = _objects(record.get("tools") or [], "tools", place)
    if given == ["messages"]:
        messages = _messages(record["messages"], place)
        return Prompt(id=identifier, set=set_name, messages=messages, tools=tools)
    if tools:
        raise place.error("tools", f"needs 'messages': {given[0]!r} goes through no chat template")
    if given == ["prompt"]:
        return Prompt(id=identifier, set=set_name, text=_text(record["prompt"], "prompt", place))
    return Prompt(id=identifier, set=set_name, ids=_ids(record["prompt_ids"], place))


def _messages(value: Any, place: _Place) -> tuple[Message, ...]:
    turns = [
        _message(turn, f"messages[{index}]", place) for index, turn in enumerate(_objects(value, "messages", place))
    ]
    if not turns:
        raise place.error("messages", "is an empty list")
    if turns[-1].role == "assistant":
        raise place.error("messages", "ends with the assistant's turn: nothing is left to reply to")
    return tuple(turns)


def _message(turn: Mapping[str, Any], field: str, place: _Place) -> Message:
    _refuse_unknown(turn, _MESSAGE_FIELDS, place, within=field)
    calls = _objects(turn.get("tool_calls") or [], f"{field}.tool_calls", place)
    content = turn.get("content")
    return Message(
        role=_text(turn.get("role"), f"{field}.role", place),
        content="" if content is None and calls else _content(content, f"{field}.content", place),
        name=None if turn.get("name") is None else _text(turn["name"], f"{field}.name", place),
        tool_call_id=(
            None if turn.get("tool_call_id") is None else _text(turn["tool_call_id"], f"{field}.tool_call_id", place)
        ),
        tool_calls=calls,
    )


def _content(value: Any, field: str, place: _Place) -> str:
    """Text, or a list of text parts joined; images and audio are refused."""
    if not isinstance(value, list):
        return _text(value, field, place)
    parts = []
    for index, part in enumerate(_objects(value, field, place)):
        if part.get("type") != "text":
            raise place.error(
                f"{field}[{index}]",
                f"is of type {part.get('type')!r}; only text can be used",
                code="LG0414",
                fix="remove prompts with images, audio or video: token ids cannot express them, so arms would differ",
            )
        parts.append(_text(part.get("text"), f"{field}[{index}].text", place))
    return "".join(parts)


def _read_sharegpt(path: Path, text: str) -> tuple[list[Prompt], list[str]]:
    try:
        entries = json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise _Place(file=path.name, line=line).error("(whole file)", f"is no JSON: {error}") from error
    prompts: list[Prompt] = []
    ignored: Counter[str] = Counter()
    for number, entry in enumerate(entries, start=1):
        place = _Place(file=path.name, line=number, unit="entry")
        if not isinstance(entry, dict) or not isinstance(entry.get("conversations"), list):
            raise place.error("conversations", "is missing or no list")
        ignored.update(key for key in entry if key not in ("id", "conversations"))
        messages = _sharegpt_messages(entry["conversations"], place)
        if messages:
            identifier = f"{path.stem}-{len(prompts):03d}"
            prompts.append(Prompt(id=identifier, set=path.stem, messages=messages))
    notes = [f"{path.name}: fields not used: {', '.join(sorted(ignored))}"] if ignored else []
    if len(prompts) < len(entries):
        count = len(entries) - len(prompts)
        notes.append(f"{path.name}: {count} of {len(entries)} conversations left out: no user turn at the start")
    return prompts, notes


def _sharegpt_messages(conversation: list[Any], place: _Place) -> tuple[Message, ...]:
    """Everything up to the last user turn; empty if the first turn (a system turn aside) is not the user's."""
    turns = []
    for index, turn in enumerate(_objects(conversation, "conversations", place)):
        field = f"conversations[{index}]"
        sender = _text(turn.get("from"), f"{field}.from", place)
        if sender not in _SHAREGPT_ROLES:
            raise place.error(f"{field}.from", f"is {sender!r}. {near_miss(sender, _SHAREGPT_ROLES)}")
        value = turn.get("value")
        if not isinstance(value, str):
            raise place.error(f"{field}.value", f"must be text, found {type(value).__name__}")
        turns.append(Message(role=_SHAREGPT_ROLES[sender], content=value))
    while turns and (turns[-1].role != "user" or not turns[-1].content.strip()):
        turns.pop()
    first = next((turn.role for turn in turns if turn.role != "system"), None)
    return tuple(turns) if first == "user" else ()


def _refuse_unknown(record: Mapping[str, Any], known: tuple[str, ...], place: _Place, *, within: str = "") -> None:
    for key in record:
        if key not in known:
            name = f"{within}.{key}" if within else key
            raise place.error(name, f"is unknown. {near_miss(key, known)}", code="LG0413")


def _identifier(value: Any, place: _Place) -> str:
    text = _text(value, "id", place)
    if not _IDENTIFIER.fullmatch(text):
        raise place.error("id", f"is {text!r}; ids have no spaces and no '#'")
    return text


def _text(value: Any, field: str, place: _Place) -> str:
    if not isinstance(value, str):
        found = "nothing" if value is None else type(value).__name__
        raise place.error(field, f"must be text, found {found}")
    if not value.strip():
        raise place.error(field, "is empty")
    return value


def _objects(value: Any, field: str, place: _Place) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise place.error(field, "must be a list of objects")
    return tuple(value)


def _ids(value: Any, place: _Place) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise place.error("prompt_ids", "must be a list of token ids that is not empty")
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        raise place.error("prompt_ids", "must hold whole numbers only")
    return tuple(value)
