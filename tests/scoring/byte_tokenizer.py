"""A byte-level tokenizer of a few hundred ids in a folder, for grammars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END = 0
OTHER_END = 1


def write_tokenizer(folder: Path) -> Tokenizer:
    """Two special ids, all bytes, and the merges ``ab`` and ``aba``; written as ``tokenizer.json``."""
    specials = ["<|end|>", "<|other|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: at for at, text in enumerate([*specials, *letters, "ab", "aba"])}
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b"), ("ab", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer  # type: ignore[no-any-return]
