"""From prompts to requests."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from lossguard.errors import UsageError
from lossguard.prompts.base import Message, Prompt
from lossguard.prompts.clusters import BOUNDARY
from lossguard.prompts.render import (
    SHORT_SYSTEM_MESSAGE,
    build_requests,
    load_tokenizer,
    prompt_clusters,
    render,
    shortest_system_message,
)
from lossguard.records import SamplingParams
from tests.prompts.conftest import TEMPLATE, MakeTokenizer, words

TOOL = {"type": "function", "function": {"name": "look_up"}}
GREEDY = SamplingParams(max_tokens=8)


def chat(content: str, name: str = "p", *, system: str | None = None) -> Prompt:
    first = () if system is None else (Message(role="system", content=system),)
    return Prompt(id=name, set="chat", messages=(*first, Message(role="user", content=content)))


def decoded(tokenizer: PreTrainedTokenizerFast, ids: tuple[int, ...]) -> str:
    return str(tokenizer.decode(list(ids)))


def test_messages_go_through_the_template(tokenizer: PreTrainedTokenizerFast) -> None:
    rendered = render(chat("w1 w2"), tokenizer)
    assert decoded(tokenizer, rendered.ids) == (
        "<s> system you are a built in default </s> <s> user w1 w2 </s> <s> assistant"
    )
    assert rendered.template_hash == hashlib.sha256(TEMPLATE.encode()).hexdigest()
    assert decoded(tokenizer, rendered.content_ids) == "w1 w2"
    assert "generation prompt added" in rendered.reason


def test_tools_reach_the_template(tokenizer: PreTrainedTokenizerFast) -> None:
    prompt = Prompt(id="p", set="s", messages=(Message(role="user", content="w1"),), tools=(TOOL, TOOL))
    assert "<tools> 2 </tools>" in decoded(tokenizer, render(prompt, tokenizer).ids)


def test_tools_that_reach_no_template_are_refused(make_tokenizer: MakeTokenizer) -> None:
    prompt = Prompt(id="p", set="s", messages=(Message(role="user", content="w1"),), tools=(TOOL,))
    deaf = make_tokenizer("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    for tokenizer, because in ((deaf, "ignores tools"), (make_tokenizer(None), "has no chat template")):
        with pytest.raises(UsageError, match=because) as caught:
            render(prompt, tokenizer)
        assert caught.value.code == "LG0424"


def test_what_the_template_refuses_is_an_error(tokenizer: PreTrainedTokenizerFast) -> None:
    prompt = Prompt(id="p7", set="s", messages=(Message(role="narrator", content="w1"),))
    with pytest.raises(UsageError, match=r"'p7'.*no narrator here") as caught:
        render(prompt, tokenizer)
    assert caught.value.code == "LG0421"


def test_text_and_ids_are_used_as_they_are(tokenizer: PreTrainedTokenizerFast) -> None:
    text = render(Prompt(id="p", set="s", text="w3 w4"), tokenizer)
    ids = render(Prompt(id="p", set="s", ids=text.ids), tokenizer)
    assert decoded(tokenizer, text.ids) == "w3 w4"
    assert text.ids == ids.ids == text.content_ids == ids.content_ids
    assert text.template_hash is None
    assert ids.template_hash is None


def test_without_a_template_messages_are_joined_and_the_reason_says_so(make_tokenizer: MakeTokenizer) -> None:
    rendered = render(chat("w1 w2", system="w3"), make_tokenizer(None))
    assert decoded(make_tokenizer(None), rendered.ids) == "w3 w1 w2"
    assert rendered.template_hash is None
    assert "no chat template" in rendered.reason


@pytest.mark.parametrize(("bad", "position"), [(-1, 1), (10_000, 1)])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: PreTrainedTokenizerFast, bad: int, position: int) -> None:
    with pytest.raises(UsageError, match=f"id {bad} at position {position}") as caught:
        render(Prompt(id="p", set="s", ids=(3, bad)), tokenizer)
    assert caught.value.code == "LG0422"
    last = len(tokenizer) - 1
    assert render(Prompt(id="p", set="s", ids=(0, last)), tokenizer).ids == (0, last)


def test_content_is_without_system_message_and_keeps_messages_apart(tokenizer: PreTrainedTokenizerFast) -> None:
    turns = (("system", "w9"), ("user", "w1"), ("assistant", "w2"), ("user", "w3"))
    prompt = Prompt(id="p", set="s", messages=tuple(Message(role=role, content=text) for role, text in turns))
    w1, w2, w3 = (tokenizer.convert_tokens_to_ids(word) for word in ("w1", "w2", "w3"))
    assert render(prompt, tokenizer).content_ids == (w1, BOUNDARY, w2, BOUNDARY, w3)


def test_a_shared_system_message_or_template_joins_no_clusters(tokenizer: PreTrainedTokenizerFast) -> None:
    prompts = [chat(words(20 * index, 15), f"p{index}", system=words(400, 20)) for index in range(4)]
    as_ids = [
        Prompt(id=f"i{index}", set="s", ids=render(chat(words(20 * index, 3)), tokenizer).ids) for index in range(4)
    ]
    assert len(set(prompt_clusters(prompts, tokenizer).values())) == 4
    assert len(set(prompt_clusters(as_ids, tokenizer).values())) == 4


def test_requests_carry_everything(tokenizer: PreTrainedTokenizerFast) -> None:
    prompts = [chat(words(0, 20), "math-000"), chat(words(5, 20), "math-001"), chat(words(100, 20), "math-002")]
    sampling = SamplingParams(max_tokens=8, stop_ids=(5, 2))
    requests = build_requests(prompts, tokenizer, sampling, stop_ids=(2, 7), repeats=2)
    assert [request.id for request in requests] == [
        "math-000", "math-000#1", "math-001", "math-001#1", "math-002", "math-002#1",
    ]  # fmt: skip
    assert [request.repeat_id for request in requests] == [0, 1, 0, 1, 0, 1]
    assert [request.cluster for request in requests] == ["math-000"] * 4 + ["math-002"] * 2
    assert {request.sampling.stop_ids for request in requests} == {(5, 2, 7)}
    assert {request.set for request in requests} == {"chat"}
    assert requests[0].prompt_ids == requests[1].prompt_ids == render(prompts[0], tokenizer).ids
    assert requests[0].chat_template_hash == render(prompts[0], tokenizer).template_hash


def test_one_request_per_prompt_by_default(tokenizer: PreTrainedTokenizerFast) -> None:
    requests = build_requests([chat("w1", "a"), chat("w2", "b")], tokenizer, GREEDY, stop_ids=())
    assert [request.id for request in requests] == ["a", "b"]
    assert requests[0].sampling == GREEDY


def test_a_short_system_message_is_chosen_only_where_it_shortens(make_tokenizer: MakeTokenizer) -> None:
    plain = "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + plain
    inserting = "{% if messages[0]['role'] != 'system' %}" + words(0, 9) + " {% endif %}" + plain
    chosen = [shortest_system_message(make_tokenizer(template)) for template in (inserting, plain, refusing, None)]
    assert [message for message, _ in chosen] == [SHORT_SYSTEM_MESSAGE, None, None, None]
    assert [reason.split(":")[-1].strip() for _, reason in chosen] == [
        "a short system message saves 5 tokens per prompt",
        "the chat template adds none of its own",
        "the chat template refuses system messages",
        "the tokenizer has no chat template",
    ]


def test_a_saved_tokenizer_is_loaded(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert render(chat("w1 w2"), loaded) == render(chat("w1 w2"), tokenizer)


def test_a_folder_without_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no tokenizer could be loaded") as caught:
        load_tokenizer(tmp_path)
    assert caught.value.code == "LG0420"
