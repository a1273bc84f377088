"""Templates, and texts that share no passage."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.errors import UsageError
from lossguard.prompts.distinct_text import PASSAGE_LENGTH, DistinctWriter, estimate_tokens, fill, polish

WORDS = {
    "letter": tuple("bcdfghjklmnpqrstvwxyz"),
    "pair": ("{letter} and {letter}",),
    "one": ("only",),
}


def pieces(text: str) -> list[str]:
    return text.lower().replace(".", " .").split()


def passages(text: str) -> set[str]:
    found = pieces(text)
    return {" ".join(found[i : i + PASSAGE_LENGTH]) for i in range(len(found) - PASSAGE_LENGTH + 1)}


@given(st.integers(0, 10_000))
def test_labels_repeat_and_differ(seed: int) -> None:
    text = fill("{letter:a} {letter:b} {letter:a} {3..40:n} {3..40:n}", WORDS, random.Random(seed)).split()
    assert text[0] == text[2] != text[1]
    assert text[3] == text[4]
    assert 3 <= int(text[3]) <= 40


def test_drawn_words_may_have_slots_and_braces_may_be_plain() -> None:
    text = fill("{pair} {} { x", WORDS, random.Random(1))
    first, second = text.removesuffix(" {} { x").split(" and ")
    assert {first, second} <= set(WORDS["letter"])


def test_more_labels_than_words_do_not_hang() -> None:
    assert fill("{one:a} {one:b}", WORDS, random.Random(0)) == "only only"


@pytest.mark.parametrize(
    ("raw", "polished"),
    [
        ("a owl sat. it slept", "An owl sat. It slept"),
        ("a uniform and a umbrella", "A uniform and an umbrella"),
        ("he said: 'no.' then left", "He said: 'no.' Then left"),
        ("banana opal", "Banana opal"),
    ],
)
def test_polish(raw: str, polished: str) -> None:
    assert polish(raw) == polished


def test_tokens_are_estimated_by_words_digits_and_signs() -> None:
    assert estimate_tokens("A cat, 42!") == 6
    assert estimate_tokens("extraordinarily") == 2


def test_texts_share_no_passage() -> None:
    writer = DistinctWriter()
    texts = []
    for index in range(60):
        draft = writer.start(random.Random(index))
        draft.write(["we saw {letter}, {letter}, {letter} and {letter} with {letter} near {letter}. "], WORDS)
        draft.write(["the {letter} met a {letter}. ", "nobody knew {letter} or {letter}. "], WORDS)
        texts.append(draft.finish())
    for i, one in enumerate(texts):
        assert all(not passages(one) & passages(other) for other in texts[:i])


def test_length_is_limited_and_endings_can_be_dropped() -> None:
    draft = DistinctWriter().start(random.Random(0))
    draft.write(["{letter}", "{letter} {letter} {letter} {letter} {letter}"], WORDS, ending=" -", most=3)
    assert draft.num_tokens == 2
    draft.drop_ending(" -")
    assert draft.num_tokens == 1
    assert len(draft.finish()) == 1


def test_a_dry_generator_says_so() -> None:
    writer = DistinctWriter()
    template = ["one two three four five six seven eight {one}."]
    writer_text = writer.start(random.Random(0))
    writer_text.write(template, WORDS)
    writer_text.finish()
    with pytest.raises(UsageError, match="shares no passage") as caught:
        writer.start(random.Random(1)).write(template, WORDS)
    assert caught.value.code == "LG0419"
