"""A tiny random Llama model with a word-level tokenizer, saved as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB_SIZE = 512
STOP_ID = 2


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """float32; its generation config asks for sampling and penalties, which must never leak into requests."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder, dtype=torch.float32)
    return str(folder)


@pytest.fixture(scope="session")
def tiny_bfloat16_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny-bfloat16")
    save_tiny_model(folder, dtype=torch.bfloat16)
    return str(folder)


def save_tiny_model(folder: Path, *, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    make_config: Any = LlamaConfig
    config = make_config(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=STOP_ID,
        pad_token_id=0,
    )
    model: Any = LlamaForCausalLM(config)
    model.to(dtype)
    model.generation_config.update(do_sample=True, temperature=3.0, repetition_penalty=1.7, eos_token_id=[STOP_ID])
    model.save_pretrained(folder)
    words = {f"w{token:03}": token for token in range(VOCAB_SIZE)}
    words["abcdef"] = words.pop("w511")  # transformers' stop strings probe the tokenizer with this word
    tokenizer: Any = Tokenizer(models.WordLevel(words, unk_token="w000"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped: Any = PreTrainedTokenizerFast
    wrapped(tokenizer_object=tokenizer, eos_token=f"w{STOP_ID:03}").save_pretrained(folder)
