"""Prompts before any tokenizer has seen them, and sets of prompts with their three splits."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lossguard.errors import UsageError

KINDS = ("chat", "code", "math", "reasoning", "long")
"""The five kinds of prompts; each is one set of a run, and sets are judged pooled."""


class Split(StrEnum):
    """What a prompt may be used for; no prompt and no cluster is in two splits."""

    CALIBRATION = "calibration"  # thresholds from stock alone
    TEST = "test"  # both arms are judged on these
    SEALED = "sealed"  # kept back, never shown to whoever tunes a candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message; ``tool_calls`` are JSON objects in the form that chat templates take."""

    role: str
    content: str
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()

    def to_template(self) -> dict[str, Any]:
        """The dict that a chat template gets: absent fields are left out."""
        data: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.name is not None:
            data["name"] = self.name
        if self.tool_call_id is not None:
            data["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            data["tool_calls"] = [dict(call) for call in self.tool_calls]
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt in exactly one of three forms.

    ``messages`` go through the chat template (with ``tools``), ``text`` is tokenized as it stands, ``ids`` are used
    as they are.
    """

    id: str
    set: str
    messages: tuple[Message, ...] | None = None
    text: str | None = None
    ids: tuple[int, ...] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        """Refuse a prompt with no form or with several (LG0423)."""
        forms = [name for name in ("messages", "text", "ids") if getattr(self, name)]
        if len(forms) != 1:
            found = f"prompt {self.id!r} has {' and '.join(forms) if forms else 'no content'}"
            raise UsageError(
                found,
                why="a prompt needs exactly one non-empty form, else it is unclear what is served",
                fix="give exactly one of messages, text and ids",
                code="LG0423",
            )

    def canonical_json(self) -> str:
        """One line that is equal for equal prompts: what hashes are made of."""
        data = {
            "id": self.id,
            "set": self.set,
            "messages": None if self.messages is None else [message.to_template() for message in self.messages],
            "text": self.text,
            "ids": self.ids,
            "tools": [dict(tool) for tool in self.tools],
        }
        return json.dumps(data, sort_keys=True, ensure_ascii=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """Prompts of one or several sources, each in one split.

    ``reasons`` says how each automatic choice was made: what was read, how it was split, what was left out.
    """

    name: str
    prompts: tuple[Prompt, ...]
    splits: Mapping[Split, tuple[str, ...]]  # ids, in the order in which they are served
    reasons: tuple[str, ...] = ()
    _by_id: Mapping[str, Prompt] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check that ids are unique (LG0415) and that the splits are disjoint and known."""
        repeated = [name for name, count in Counter(prompt.id for prompt in self.prompts).items() if count > 1]
        if repeated:
            raise UsageError(
                f"prompt set {self.name!r}: {len(repeated)} ids occur twice, the first is {repeated[0]!r}",
                why="outputs and scores are found by request id",
                fix="give every prompt its own id, or leave ids out and let lossguard number them",
                code="LG0415",
            )
        object.__setattr__(self, "_by_id", {prompt.id: prompt for prompt in self.prompts})
        placed = Counter(name for split in Split for name in self.splits.get(split, ()))
        assert all(count == 1 for count in placed.values()), "a prompt is in two splits"
        assert placed.keys() <= self._by_id.keys(), "a split names a prompt that the set does not have"

    def split(self, split: Split | str) -> tuple[Prompt, ...]:
        """The prompts of one split, in the order in which they are served."""
        return tuple(self._by_id[name] for name in self.splits.get(Split(split), ()))

    @property
    def sha256(self) -> str:
        """Hash of all prompts and of their places in the splits."""
        parts = [f"{split.value}:{self.split_sha256(split)}" for split in Split]
        return _sha256([*parts, *sorted(prompt.canonical_json() for prompt in self.prompts)])

    def split_sha256(self, split: Split | str) -> str:
        """Hash of one split's prompts in their order."""
        return _sha256(prompt.canonical_json() for prompt in self.split(split))


def number_prompts(set_name: str, count: int) -> list[str]:
    """Stable, readable ids: ``math-000``, ``math-001``, ... (three digits, more if ``count`` needs them)."""
    width = max(3, len(str(max(count - 1, 0))))
    return [f"{set_name}-{index:0{width}d}" for index in range(count)]


def interleave(groups: Sequence[Sequence[Prompt]]) -> list[Prompt]:
    """First of each group, second of each group, ...: a prefix of the result has about equal shares."""
    longest = max((len(group) for group in groups), default=0)
    return [group[rank] for rank in range(longest) for group in groups if rank < len(group)]


def _sha256(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode("utf-8") + b"\n")
    return digest.hexdigest()
