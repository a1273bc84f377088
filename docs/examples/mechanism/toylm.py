"""A language model of three tables, a plain decoder, and the mechanism that this project is about.

``lookup`` drafts the tokens that followed the last token's previous occurrence and keeps those that the model itself
would have chosen: fewer steps, the same replies.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

VOCAB, ORDER, STOP, DRAFT = 64, 3, 0, 4
ACCEPT_BEST = 1  # a draft is kept if it is among the best so many; anything but 1 is faster and lossy
MODEL = Path(__file__).resolve().parent / "model"


def write_model(folder: Path = MODEL) -> Path:
    """A model folder: configuration, word-level tokenizer, weights."""
    folder.mkdir(exist_ok=True)
    vocab = {f"w{index}": index for index in range(VOCAB)}
    config = {"model_type": "llama", "vocab_size": VOCAB, "eos_token_id": STOP, "dtype": "float32"}
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w1", "eos_token": "w0"}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w1"},
    }
    for name, data in (("config", config), ("tokenizer_config", special), ("tokenizer", tokenizer)):
        (folder / f"{name}.json").write_text(json.dumps(data))
    tables = np.random.default_rng(5).normal(size=(ORDER, VOCAB, VOCAB)).astype(np.float32) * 3
    tables[:, :, STOP] -= 4  # replies end rarely
    save_file({"tables": tables}, str(folder / "model.safetensors"))
    return folder


class Model:
    """Logits depend on the last three tokens."""

    def __init__(self, folder: Path = MODEL) -> None:
        self.tables = load_file(str(folder / "model.safetensors"))["tables"]

    def logits(self, ids: list[int], first: int) -> np.ndarray:
        """Logits after ``ids[:first]``, ``ids[: first + 1]``, ... in one pass: [positions, VOCAB]."""
        padded = np.array([STOP] * ORDER + ids)
        ends = np.arange(first, len(ids) + 1) + ORDER
        return sum(self.tables[back, padded[ends - 1 - back]] for back in range(ORDER))


def generate(prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
    """Plain greedy decoding, one token a step: what ``lookup`` must not change."""
    model, replies = Model(), []
    for prompt in prompts:
        ids = list(prompt)
        while not _is_done(ids, len(prompt), max_new_tokens):
            ids.append(int(model.logits(ids, len(ids))[0].argmax()))
        replies.append(ids[len(prompt) :])
    return replies


def lookup(prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
    """Greedy decoding with drafts from the text so far, all verified in one pass a step."""
    model, replies = Model(), []
    for prompt in prompts:
        ids = list(prompt)
        while not _is_done(ids, len(prompt), max_new_tokens):
            draft = _draft(ids)
            ranked = np.argsort(-model.logits(ids + draft, len(ids)), axis=1)
            kept = 0
            while kept < len(draft) and draft[kept] in ranked[kept, :ACCEPT_BEST]:
                kept += 1
            new = [*draft[:kept], int(ranked[kept, 0])]
            ids += new[: new.index(STOP) + 1] if STOP in new else new
        replies.append(ids[len(prompt) : len(prompt) + max_new_tokens])
    return replies


def _draft(ids: list[int]) -> list[int]:
    seen = [index for index in range(len(ids) - 1) if ids[index] == ids[-1]]
    return ids[seen[-1] + 1 : seen[-1] + 1 + DRAFT] if seen else []


def _is_done(ids: list[int], num_prompt: int, max_new_tokens: int) -> bool:
    return len(ids) - num_prompt >= max_new_tokens or (len(ids) > num_prompt and ids[-1] == STOP)
