"""Parameters replayed on logits: the same as transformers' own processors, and as a plain loop where it has none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from lossguard.errors import ScorerError
from lossguard.records import Request, SamplingParams
from lossguard.scoring.grammar_masks import GrammarMasks, load_grammar_masks
from lossguard.scoring.replayed_parameters import (
    CONVENTIONS,
    MASKED,
    Convention,
    ReplayedRequest,
    RowContext,
    replay,
    replayed_request,
)
from tests.scoring.byte_tokenizer import END, OTHER_END, write_tokenizer

VOCAB_SIZE = 12
BYTES = 300  # rows of a head over the byte-level tokenizer, some without a token
STOPS = (2, 5)
IDS = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=10)
VALUES = st.lists(st.floats(-8, 8, width=32), min_size=VOCAB_SIZE, max_size=VOCAB_SIZE)
Logits = np.ndarray[Any, np.dtype[np.float64]]


def request_of(prompt: Sequence[int], **sampling: Any) -> Request:
    asked = SamplingParams(**{"max_tokens": 16, "stop_ids": STOPS, **sampling})
    return Request(id="r", prompt_ids=tuple(prompt), sampling=asked, set="s", cluster="c")


def whole(request: Request, convention: str | Convention, masks: GrammarMasks | None = None) -> ReplayedRequest:
    chosen = CONVENTIONS[convention] if isinstance(convention, str) else convention
    found = replayed_request(request, chosen, masks)
    assert found is not None
    return found


def replayed(logits: Sequence[float], request: Request, reply: Sequence[int], convention: str = "vllm") -> torch.Tensor:
    """Logits of one position after ``reply``; masked ones are -inf."""
    rows = torch.tensor([list(logits)], dtype=torch.float32)
    context = RowContext(request=whole(request, convention), prefix=np.array(reply, dtype=np.int64))
    assert replay(rows, [context]).tolist() == [True]
    return rows[0].masked_fill(rows[0] <= MASKED / 2, float("-inf"))


@settings(max_examples=60)
@given(VALUES, IDS, IDS, st.floats(0.5, 2.0), st.integers(0, 12))
def test_transformers_processors(
    values: list[float], prompt: list[int], reply: list[int], penalty: float, min_tokens: int
) -> None:
    bias = ((3, 2.5), (7, -4.0))
    words = ((4,), (1, 6), (0, 0, 8))
    request = request_of(
        prompt, repetition_penalty=penalty, logit_bias=bias, bad_words=words, min_tokens=min_tokens or 1
    )
    make_bias: Any = SequenceBiasLogitsProcessor
    make_words: Any = NoBadWordsLogitsProcessor
    processors: Any = LogitsProcessorList(
        [
            make_bias(sequence_bias=[[[token], value] for token, value in bias]),
            RepetitionPenaltyLogitsProcessor(penalty=penalty),
            make_words(bad_words_ids=[list(word) for word in words]),
            MinNewTokensLengthLogitsProcessor(len(prompt), min_tokens or 1, torch.tensor(STOPS)),
        ]
    )
    expected = processors(torch.tensor([prompt + reply]), torch.tensor([values], dtype=torch.float32))
    torch.testing.assert_close(replayed(values, request, reply, "transformers"), expected[0], rtol=1e-6, atol=1e-6)


def by_hand(values: Sequence[float], request: Request, reply: Sequence[int]) -> Logits:
    """vLLM's and OpenAI's formulas in a loop over ids: repetition over prompt and reply, the others over the reply."""
    asked, logits = request.sampling, np.array(values, dtype=np.float64)
    for token, bias in asked.logit_bias:
        logits[token] += bias
    for token in range(VOCAB_SIZE):
        if token in (*request.prompt_ids, *reply):
            repetition = asked.repetition_penalty
            logits[token] = logits[token] / repetition if logits[token] > 0 else logits[token] * repetition
        count = list(reply).count(token)
        logits[token] -= asked.frequency_penalty * count + asked.presence_penalty * (count > 0)
    return logits


@settings(max_examples=60)
@given(VALUES, IDS, IDS, st.floats(-2, 2), st.floats(-2, 2))
def test_frequency_and_presence(
    values: list[float], prompt: list[int], reply: list[int], frequency: float, presence: float
) -> None:
    request = request_of(
        prompt, frequency_penalty=frequency, presence_penalty=presence, repetition_penalty=1.3, logit_bias=((1, 3.0),)
    )
    found = replayed(values, request, reply).double().numpy()
    np.testing.assert_allclose(found, by_hand(values, request, reply), rtol=0, atol=2e-5)


def test_what_an_engine_counts() -> None:
    values = [1.0] * VOCAB_SIZE
    request = request_of([1, 1], repetition_penalty=2.0, frequency_penalty=0.25, logit_bias=((4, 1.0),))
    assert replayed(values, request, [4]).tolist()[1:5] == [0.5, 1.0, 1.0, 0.75]  # (1 + 1) / 2 - 0.25
    assert replayed(values, request, [4], "llamacpp").tolist()[1:5] == [0.0, 1.0, 1.0, 0.75]
    assert replayed(values, request, [4], "sglang").tolist()[1:5] == [1.0, 1.0, 1.0, 1.375]  # (1 - 0.25) / 2 + 1


def test_stops_are_hidden_until_min_tokens_and_never_by_ignore_eos_but_in_llamacpp() -> None:
    values = [0.0] * VOCAB_SIZE
    early = request_of([1], min_tokens=2)
    assert torch.isinf(replayed(values, early, [3])).nonzero().flatten().tolist() == list(STOPS)
    assert not torch.isinf(replayed(values, early, [3, 3])).any()
    ignored = request_of([1], ignore_eos=True)
    assert replayed_request(ignored, CONVENTIONS["vllm"], None) is None
    assert torch.isinf(replayed(values, ignored, [3], "llamacpp")).nonzero().flatten().tolist() == list(STOPS)


def test_ids_that_do_not_exist_change_nothing() -> None:
    request = request_of(
        [1, 50], repetition_penalty=2.0, presence_penalty=1.0, logit_bias=((99, 5.0),), bad_words=((77,),)
    )
    assert replayed([1.0] * VOCAB_SIZE, request, [60]).tolist() == [1.0, 0.5, *[1.0] * 10]


def test_plain_requests_need_no_replay() -> None:
    assert (
        replayed_request(request_of([1], temperature=0.7, top_p=0.5, stop_strings=("x",)), CONVENTIONS["vllm"], None)
        is None
    )
    assert request_of([1], min_tokens=3, presence_penalty=1.0).sampling.replayed_parameters() == (
        "presence_penalty",
        "min_tokens",
    )


SCHEMA = 'json:{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bytes")
    write_tokenizer(made)
    return made


@pytest.fixture(scope="module")
def masks(folder: Path) -> GrammarMasks:
    found = load_grammar_masks(str(folder), BYTES)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def encode(folder: Path) -> Callable[[str], list[int]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text).ids
        return found

    return ids


@pytest.mark.parametrize(("grammar", "text"), [(SCHEMA, '{"a": 12}'), ("regex:[ab]{3}, [0-9]+", "aba, 73")])
def test_a_reply_in_the_grammar_is_allowed_token_by_token(
    masks: GrammarMasks, encode: Callable[[str], list[int]], grammar: str, text: str
) -> None:
    ids, walk = encode(text), masks.walk(grammar, (END, OTHER_END))
    for position, token in enumerate(ids):
        allowed = walk.allowed(ids[:position])
        assert allowed is not None
        assert allowed[token]
        assert allowed.sum() < 80
    ended = walk.allowed(ids)
    assert ended is not None
    assert ended[[END, OTHER_END]].all(), "every stop id of the request ends it"
    early = walk.allowed(ids[:1])
    assert early is not None
    assert not early[[END, OTHER_END]].any()


def test_a_reply_that_leaves_the_grammar_is_lost_from_there_on(
    masks: GrammarMasks, encode: Callable[[str], list[int]]
) -> None:
    walk = masks.walk("regex:[ab]{3}", (0,))
    outside = encode("c")
    assert walk.allowed(outside) is None
    assert walk.allowed([*outside, 5]) is None
    again = walk.allowed([])
    assert again is not None
    assert not again[outside[0]]


def test_a_grammar_masks_logits_and_says_when_it_cannot(
    masks: GrammarMasks, encode: Callable[[str], list[int]]
) -> None:
    request = request_of([1], grammar="regex:[0-9]{2}", stop_ids=(0,))
    rows = torch.zeros(3, BYTES)
    seven = encode("7")
    made = whole(request, "vllm", masks)
    prefixes = [[], seven, encode("x")]
    contexts = [RowContext(request=made, prefix=np.array(ids, dtype=np.int64), walk=made.walk()) for ids in prefixes]
    assert replay(rows, contexts).tolist() == [True, True, False]
    assert rows[0, seven[0]] == rows[1, seven[0]] == 0.0
    assert rows[0, 0] == rows[1, 0] == MASKED
    assert (rows[2] == 0.0).all()
    unable = whole(request, "vllm")
    assert not unable.is_whole
    assert replay(rows[:1], [RowContext(request=unable, prefix=np.array([], dtype=np.int64))]).tolist() == [False]


@pytest.mark.parametrize("grammar", ["regex:([", "lark:start: x", 'json:{"type": 3}', "json:{broken"])
def test_a_grammar_that_nobody_understands_is_refused(masks: GrammarMasks, grammar: str) -> None:
    with pytest.raises(ScorerError, match="cannot be replayed") as caught:
        masks.walk(grammar, (0,))
    assert caught.value.code == "LG0530"


def test_without_a_tokenizer_or_the_package_there_are_no_masks(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_grammar_masks("", 10) is None
    assert load_grammar_masks(str(tmp_path), 10) is None
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert load_grammar_masks(str(folder), BYTES) is None
