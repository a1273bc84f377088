"""From the names in a configuration to one split set."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from lossguard.errors import UsageError
from lossguard.prompts import load_prompt_set
from lossguard.prompts.base import KINDS, PromptSet, Split
from lossguard.prompts.render import SHORT_SYSTEM_MESSAGE, prompt_clusters
from tests.prompts.conftest import words


def write_prompts(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))


def sizes_of(prompts: PromptSet) -> list[int]:
    return [len(prompts.split(split)) for split in Split]


@pytest.fixture(scope="module")
def wide_tokenizer() -> PreTrainedTokenizerFast:
    """Knows every character, so that texts in English differ: 13 tokens are 13 words, digits or signs."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Digits, Punctuation, Sequence, WhitespaceSplit

    from lossguard.prompts.generator import generate

    splitter = Sequence([WhitespaceSplit(), Punctuation(), Digits(individual_digits=True)])
    texts = [message.content for prompt in generate(17, 400) for message in prompt.messages or ()]
    texts += [
        message.content for prompt in generate(17, 400, max_prompt_tokens=48) for message in prompt.messages or ()
    ]
    known = {piece for text in texts for piece, _ in splitter.pre_tokenize_str(text)}
    vocab = {piece: index for index, piece in enumerate(["<unk>", "You", "are", "helpful", *sorted(known)])}
    model = Tokenizer(WordLevel({piece: index for index, piece in enumerate(vocab)}, unk_token="<unk>"))
    model.pre_tokenizer = splitter
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, unk_token="<unk>")
    tokenizer.chat_template = (
        "{% if messages[0]['role'] != 'system' %}a long system message of its own {% endif %}"
        "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    )
    return tokenizer


def test_the_default_set(wide_tokenizer: PreTrainedTokenizerFast) -> None:
    prompts = load_prompt_set("default", tokenizer=wide_tokenizer)
    assert sizes_of(prompts) == [80, 240, 80]
    assert prompts.name == "default"
    assert Counter(prompt.set for prompt in prompts.split("test")) == dict.fromkeys(KINDS, 48)
    assert prompts.reasons == ("400 generated prompts (chat, code, math, reasoning, long), seed 17, no length limit",)
    assert len(set(prompt_clusters(prompts.split("test"), wide_tokenizer).values())) == 240


def test_the_demo_set_gets_a_short_system_message(wide_tokenizer: PreTrainedTokenizerFast) -> None:
    prompts = load_prompt_set(("demo",), tokenizer=wide_tokenizer, num_calibration=10, num_test=20)
    assert sizes_of(prompts) == [10, 20, 80]
    first = prompts.split("test")[0]
    assert first.messages is not None
    assert first.messages[0].content == SHORT_SYSTEM_MESSAGE
    assert "short system message saves" in prompts.reasons[-1]


def test_single_kinds_and_repeated_names(wide_tokenizer: PreTrainedTokenizerFast) -> None:
    prompts = load_prompt_set(["math", "code", "math"], tokenizer=wide_tokenizer, num_calibration=4, num_test=6)
    assert {prompt.set for prompt in prompts.prompts} == {"math", "code"}
    assert sizes_of(prompts) == [4, 6, 80]


def test_own_files_are_found_from_the_folder_and_split_by_cluster(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    pairs = [text for index in range(30) for text in (words(15 * index, 14), words(15 * index, 13) + " user")]
    write_prompts(tmp_path / "data" / "mine.jsonl", pairs)
    prompts = load_prompt_set("data/mine.jsonl", tokenizer=tokenizer, num_calibration=10, num_test=30, folder=tmp_path)
    assert sizes_of(prompts) == [10, 30, 20]
    clusters = prompt_clusters(prompts.prompts, tokenizer)
    assert len(set(clusters.values())) == 30
    found = [{clusters[prompt.id] for prompt in prompts.split(split)} for split in Split]
    assert not found[0] & found[1]
    assert not found[0] & found[2]
    assert not found[1] & found[2]
    assert prompts.name == "data/mine.jsonl"


def test_own_prompts_are_pooled_with_generated_ones(wide_tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    write_prompts(tmp_path / "mine.jsonl", [f"{index} {'1 ' * index}" for index in range(12)])
    prompts = load_prompt_set(
        ["math", "mine.jsonl"], tokenizer=wide_tokenizer, num_calibration=8, num_test=12, folder=tmp_path
    )
    assert Counter(prompt.set for prompt in prompts.split("calibration")) == {"math": 4, "mine": 4}
    assert len(prompts.reasons) >= 2


def test_large_files_are_sampled(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    write_prompts(tmp_path / "big.jsonl", [f"{words(index, 2)} {words(7 * index, 3)}" for index in range(450)])
    load = {
        seed: load_prompt_set(
            "big.jsonl", tokenizer=tokenizer, seed=seed, num_calibration=5, num_test=10, folder=tmp_path
        )
        for seed in (1, 2)
    }
    assert "big.jsonl: 380 of 450 prompts drawn, seed 1" in load[1].reasons
    assert set(load[1].prompts) != set(load[2].prompts)


@pytest.mark.parametrize(
    ("names", "code", "message"),
    [
        ("defualt", "LG0410", "unknown prompt set 'defualt'"),
        ((), "LG0410", "unknown prompt set ''"),
        (("demo", "chat"), "LG0410", "'demo' was named together with chat"),
        ("nowhere/mine.jsonl", "LG0411", "cannot be read"),
    ],
)
def test_unknown_names(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, names: str | tuple[str, ...], code: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_prompt_set(names, tokenizer=tokenizer, folder=tmp_path)
    assert caught.value.code == code
    if names == "defualt":
        assert "Did you mean 'default'?" in caught.value.fix
