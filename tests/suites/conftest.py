"""A tiny random Llama model, saved as a Hugging Face folder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """float32, vocabulary of 512, stop id 2."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    make_config: Any = LlamaConfig
    config = make_config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        eos_token_id=2,
    )
    model: Any = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return str(folder)
