"""A small tokenizer with a chat template that behaves as real ones do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

NUM_WORDS = 500
TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}<s> system you are a built in default </s> {% endif %}"
    "{% if tools %}<tools> {{ tools | length }} </tools> {% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'narrator' %}{{ raise_exception('no narrator here') }}{% endif %}"
    "<s> {{ message['role'] }} {{ message['content'] }} </s> "
    "{% endfor %}"
    "{% if add_generation_prompt %}<s> assistant{% endif %}"
)
WORDS = (
    ["<unk>", "<s>", "</s>", "<tools>", "</tools>", "system", "user", "assistant", "tool"]
    + ["you", "are", "a", "built", "in", "default", "1", "2", "You", "helpful."]
    + [f"w{index}" for index in range(NUM_WORDS)]
)

MakeTokenizer = Callable[[str | None], PreTrainedTokenizerFast]


@pytest.fixture(scope="session")
def make_tokenizer() -> MakeTokenizer:
    """Make the tokenizer with a chat template of one's own, or with none."""

    def make(template: str | None) -> PreTrainedTokenizerFast:
        model = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
        model.pre_tokenizer = WhitespaceSplit()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, unk_token="<unk>")
        tokenizer.chat_template = template
        return tokenizer

    return make


@pytest.fixture(scope="session")
def tokenizer(make_tokenizer: MakeTokenizer) -> PreTrainedTokenizerFast:
    """One token per word: ``w0`` ... ``w499`` and the words of the chat template."""
    return make_tokenizer(TEMPLATE)


def words(start: int, count: int) -> str:
    """``count`` words of the tokenizer, starting with number ``start``."""
    return " ".join(f"w{index % NUM_WORDS}" for index in range(start, start + count))
