"""The generated prompts: sizes, variety, length, and that they never change by accident."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lossguard.errors import UsageError
from lossguard.prompts.base import KINDS, Prompt, PromptSet, Split
from lossguard.prompts.clusters import SplitSizes, cluster_labels
from lossguard.prompts.distinct_text import PASSAGE_LENGTH, estimate_tokens
from lossguard.prompts.generator import default_prompts, demo_prompts, generate
from lossguard.prompts.kinds import chat, code, long, math, reasoning
from lossguard.prompts.render import load_tokenizer, prompt_clusters, render, shortest_system_message

SLOT = re.compile(r"\{(\w+)(?::\w+)?\}")
ANY_SLOT = re.compile(r"\{[^{}\s]+\}")
PIECE = re.compile(r"[^\W\d_]+|\S")
SMALL = SplitSizes(calibration=5, test=10, sealed=5)


def text_of(prompt: Prompt) -> str:
    assert prompt.messages is not None, "generated prompts are messages"
    return prompt.messages[-1].content


def templates_of(kind: str) -> Iterator[str]:
    module = {"chat": chat, "code": code, "math": math, "reasoning": reasoning, "long": long}[kind]
    yield from module.BRIEF
    yield from (text for options in module.WORDS.values() for text in options)
    if kind == "long":
        yield from long.CLOSING
        for genre in long.GENRES:
            yield from (*genre.opening, *genre.sentences)
    else:
        yield from module.FULL


@pytest.fixture(scope="module")
def default_set() -> PromptSet:
    return default_prompts(17)


def test_the_default_has_five_kinds_in_equal_shares(default_set: PromptSet) -> None:
    for split, count in ((Split.CALIBRATION, 80), (Split.TEST, 240), (Split.SEALED, 80)):
        shares = Counter(prompt.set for prompt in default_set.split(split))
        assert shares == dict.fromkeys(KINDS, count // len(KINDS))
    assert default_set.split("calibration")[0].id == "chat-000"
    assert "seed 17" in default_set.reasons[0]


def test_no_two_prompts_share_a_passage(default_set: PromptSet) -> None:
    contents = {
        prompt.id: PIECE.findall(re.sub(r"\ban\b", "a", text_of(prompt).lower())) for prompt in default_set.prompts
    }
    assert len(set(cluster_labels(contents, ngram_length=PASSAGE_LENGTH).values())) == len(default_set.prompts)


def test_lengths_spread_from_short_to_long(default_set: PromptSet) -> None:
    lengths = [estimate_tokens(text_of(prompt)) for prompt in default_set.prompts]
    assert min(lengths) < 30
    assert max(lengths) > 900
    assert max(lengths) <= 1_150


def test_the_same_seed_gives_the_same_prompts_on_every_machine() -> None:
    """If a template was changed on purpose, put the new hash here: recorded baselines then need their old version."""
    assert default_prompts(17, SMALL).sha256 == "4a0900a4572176fd34682bb8156baf16398814d37d6147df2cd2aed1a364cee0"
    assert demo_prompts(17, 5, 10).sha256 == "a4c78ecd520787054eeaa81236a669fd4724eb60e7a95f1d4d5d344b49a4b1fc"


def test_seeds_give_other_prompts() -> None:
    texts = [{text_of(prompt) for prompt in generate(seed, 50)} for seed in (1, 2)]
    assert len(texts[0] & texts[1]) == 0


def test_a_larger_test_split_extends_the_smaller() -> None:
    small = default_prompts(3, SMALL)
    large = default_prompts(3, SplitSizes(calibration=5, test=30, sealed=5))
    assert small.split("calibration") == large.split("calibration")
    assert small.split("sealed") == large.split("sealed")
    assert small.split("test") == large.split("test")[:10]


@pytest.mark.parametrize("most", [24, 48, 120, 400])
def test_length_is_limited(most: int) -> None:
    assert max(estimate_tokens(text_of(prompt)) for prompt in generate(5, 60, max_prompt_tokens=most)) <= most


def test_a_full_run_has_enough_demo_prompts() -> None:
    prompts = demo_prompts(17, num_test=1000, num_sealed=80)
    assert len(prompts.split("test")) == 1000
    assert len({text_of(prompt) for prompt in prompts.prompts}) == 1160


def test_the_demo_is_short_and_takes_a_system_message() -> None:
    prompts = demo_prompts(17, system="Help.")
    assert statistics.mean(estimate_tokens(text_of(prompt)) for prompt in prompts.prompts) < 35
    assert all(prompt.messages and prompt.messages[0].content == "Help." for prompt in prompts.prompts)


def test_single_kinds() -> None:
    assert [prompt.id for prompt in generate(1, 3, kinds=["math"])] == ["math-000", "math-001", "math-002"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_slot_has_words_and_none_stays_open(kind: str) -> None:
    module = {"chat": chat, "code": code, "math": math, "reasoning": reasoning, "long": long}[kind]
    named = {slot for template in templates_of(kind) for slot in SLOT.findall(template)}
    assert named - module.WORDS.keys() == set()
    assert not [prompt.id for prompt in generate(2, 40, kinds=[kind]) if SLOT.search(text_of(prompt))]


@pytest.mark.parametrize("kind", KINDS)
def test_no_fixed_run_is_as_long_as_a_passage(kind: str) -> None:
    """A template with such a run could be used for one prompt only."""
    runs = [run for template in templates_of(kind) for run in ANY_SLOT.split(template)]
    assert [run for run in runs if len(PIECE.findall(run)) >= PASSAGE_LENGTH] == []


def test_unknown_kinds_and_impossible_limits_are_refused() -> None:
    with pytest.raises(UsageError, match="'maths'") as caught:
        generate(1, 3, kinds=["maths"])
    assert caught.value.code == "LG0418"
    assert "Did you mean 'math'?" in caught.value.fix
    with pytest.raises(UsageError, match="max_prompt_tokens is 5") as caught:
        generate(1, 3, max_prompt_tokens=5)
    assert caught.value.code == "LG0427"


@pytest.mark.slow
def test_sizes_under_the_built_in_model(smollm2_path: Path) -> None:
    """The promises of the design: at least 200 clusters in 240 prompts, 830 in 1,000; demo means under 60 tokens."""
    tokenizer = load_tokenizer(smollm2_path)
    system, _ = shortest_system_message(tokenizer)
    demo = demo_prompts(17, system=system)
    full = default_prompts(17, SplitSizes(test=1000))
    demo_lengths = [len(render(prompt, tokenizer).ids) for prompt in demo.prompts]
    lengths = [len(render(prompt, tokenizer).ids) for prompt in full.prompts]
    assert statistics.mean(demo_lengths) <= 60
    assert min(lengths) >= 20
    assert max(lengths) <= 1_500
    assert len(set(prompt_clusters(full.split("test")[:240], tokenizer).values())) >= 236
    assert len(set(prompt_clusters(full.split("test"), tokenizer).values())) >= 960
    assert len(set(prompt_clusters(demo.split("test"), tokenizer).values())) >= 236
