"""The built-in SmolLM2 against transformers: the same logits, and the same greedy tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.weights import load_target
from tests.mechanisms.targets.tiny import memory_for, run_step

PROMPTS = ("The capital of France is", "def fibonacci(n):\n    ", "Once upon a time, in a small village by the sea,")
NUM_TOKENS = 24

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ours(smollm2_path: Path) -> Target:
    return load_target(smollm2_path, dtype=torch.float32).target


@pytest.fixture(scope="module")
def theirs(smollm2_path: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.float32)
    model.train(mode=False)
    return model


@pytest.fixture(scope="module")
def prompts(smollm2_path: Path) -> list[Tensor]:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_path)
    return [torch.tensor(tokenizer.encode(text)) for text in PROMPTS]


def test_logits(ours: Target, theirs: PreTrainedModel, prompts: list[Tensor]) -> None:
    memory = memory_for(ours, num_slots=len(prompts))
    found = run_step(ours, memory, {slot: (ids, 0) for slot, ids in enumerate(prompts)})
    for slot, ids in enumerate(prompts):
        with torch.no_grad():
            expected = theirs(input_ids=ids[None]).logits[0]
        torch.testing.assert_close(found[slot], expected, rtol=0, atol=2e-4)


def test_greedy_tokens_of_a_ragged_batch(ours: Target, theirs: PreTrainedModel, prompts: list[Tensor]) -> None:
    memory = memory_for(ours, num_slots=len(prompts))
    served: dict[int, list[int]] = {slot: [] for slot in range(len(prompts))}
    parts = {slot: (ids, 0) for slot, ids in enumerate(prompts)}
    for _ in range(NUM_TOKENS):
        for slot, logits in run_step(ours, memory, parts).items():
            served[slot].append(int(logits[-1].argmax()))
            ids, begun = parts[slot]
            parts[slot] = torch.tensor(served[slot][-1:]), begun + len(ids)
    generate: Any = theirs.generate
    for slot, ids in enumerate(prompts):
        replies = generate(
            ids[None], max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None
        )
        assert served[slot] == replies[0, len(ids) :].tolist()
