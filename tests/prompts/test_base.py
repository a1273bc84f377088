"""Prompts and prompt sets: forms, ids, splits, hashes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lossguard.errors import UsageError
from lossguard.prompts.base import Message, Prompt, PromptSet, Split, interleave, number_prompts

ONE = Prompt(id="chat-000", set="chat", messages=(Message(role="user", content="Hello"),))
TWO = Prompt(id="code-000", set="code", text="def f():")
THREE = Prompt(id="math-000", set="math", ids=(1, 2, 3))


def make_set(*prompts: Prompt) -> PromptSet:
    names = tuple(prompt.id for prompt in prompts)
    splits = {Split.CALIBRATION: names[:1], Split.TEST: names[1:]}
    return PromptSet(name="some", prompts=prompts, splits=splits)


@pytest.mark.parametrize("forms", [{}, {"text": ""}, {"text": "a", "ids": (1,)}])
def test_a_prompt_has_exactly_one_form(forms: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        Prompt(id="x", set="s", **forms)  # type: ignore[arg-type]
    assert caught.value.code == "LG0423"


def test_splits_are_found_by_name_too() -> None:
    prompts = make_set(ONE, TWO, THREE)
    assert prompts.split("test") == prompts.split(Split.TEST) == (TWO, THREE)
    assert prompts.split(Split.SEALED) == ()


def test_an_id_that_occurs_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="'chat-000'") as caught:
        make_set(ONE, replace(TWO, id="chat-000"))
    assert caught.value.code == "LG0415"


def test_hashes_are_the_same_on_every_machine() -> None:
    prompts = make_set(ONE, TWO, THREE)
    assert prompts.split_sha256("test") == "99594d00d85889f527aa867d8ebb89d21e84d87d7c660eda3a2b12262e838b85"
    assert prompts.sha256 == "cffe2633092981036f2154a7036e86d368c28360d109ad4d1410c2f1e0565a54"


def test_the_hash_sees_content_and_split() -> None:
    prompts = make_set(ONE, TWO, THREE)
    tool = {"type": "function", "function": {"name": "f"}}
    changed = [
        make_set(replace(ONE, messages=(Message(role="user", content="Hello!"),)), TWO, THREE),
        make_set(replace(ONE, tools=(tool,)), TWO, THREE),
        make_set(ONE, replace(TWO, set="chat"), THREE),
        make_set(ONE, TWO, replace(THREE, ids=(1, 2, 4))),
        make_set(ONE, THREE, TWO),
        make_set(TWO, ONE, THREE),
    ]
    assert len({prompts.sha256, *(other.sha256 for other in changed)}) == 1 + len(changed)
    assert changed[0].split_sha256("test") == prompts.split_sha256("test")
    assert changed[4].split_sha256("test") != prompts.split_sha256("test")


def test_the_template_gets_only_what_a_message_has() -> None:
    assert Message(role="user", content="a").to_template() == {"role": "user", "content": "a"}
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    full = Message(role="tool", content="b", name="f", tool_call_id="c1", tool_calls=(call,))
    assert full.to_template() == {
        "role": "tool",
        "content": "b",
        "name": "f",
        "tool_call_id": "c1",
        "tool_calls": [call],
    }


def test_numbers_have_three_digits_or_more() -> None:
    assert number_prompts("math", 2) == ["math-000", "math-001"]
    assert number_prompts("math", 1001)[-1] == "math-1000"


def test_interleaving_takes_turns() -> None:
    assert interleave([[ONE, TWO], [], [THREE]]) == [ONE, THREE, TWO]
