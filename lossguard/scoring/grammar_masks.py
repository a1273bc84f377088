"""Which tokens a request's grammar allows after each prefix of a reply, by llguidance (an optional package).

A grammar is written ``json:SCHEMA`` or ``regex:PATTERN``, as requests have it. It ends with the reply: once it is
complete, the request's stop ids are what may follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lossguard.errors import ScorerError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

BoolArray = NDArray[np.bool_]
JSON_SCHEMA, REGEX = "json", "regex"


class GrammarWalk:
    """One grammar along one reply; positions are asked for in any order, ascending ones cheaply."""

    def __init__(self, matcher: LLMatcher, stop_ids: Sequence[int], vocab_size: int) -> None:
        self._matcher = matcher
        self._stop_ids = [token for token in stop_ids if 0 <= token < vocab_size]
        self._vocab_size = vocab_size
        self._consumed: list[int] = []
        self._is_lost = False  # the reply has left the grammar: nothing can be said from here on

    def allowed(self, prefix: Sequence[int]) -> BoolArray | None:
        """[V] what may follow ``prefix``; None once the reply has left the grammar."""
        self._go_to(list(prefix))
        if self._is_lost:
            return None
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little").astype(np.bool_)
        mask[self._stop_ids] = self._matcher.is_accepting()
        return mask

    def _go_to(self, prefix: list[int]) -> None:
        if self._consumed != prefix[: len(self._consumed)]:
            self._matcher.reset()
            self._consumed, self._is_lost = [], False
        more = prefix[len(self._consumed) :]
        if not self._is_lost and more:
            self._is_lost = self._matcher.try_consume_tokens(more) != len(more)
        self._consumed = prefix


class GrammarMasks:
    """Grammars over one tokenizer. Raises ScorerError LG0530 for a grammar that llguidance does not take."""

    def __init__(self, tokenizer: LLTokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._compiled: dict[str, LLMatcher] = {}

    def walk(self, grammar: str, stop_ids: Sequence[int]) -> GrammarWalk:
        """A walk from the beginning of a reply."""
        if grammar not in self._compiled:
            self._compiled[grammar] = self._compile(grammar)
        return GrammarWalk(self._compiled[grammar].deep_copy(), stop_ids, self._vocab_size)

    def _compile(self, grammar: str) -> LLMatcher:
        from llguidance import LLMatcher

        kind, _, text = grammar.partition(":")
        if kind not in (JSON_SCHEMA, REGEX):
            raise _refused(grammar, "it begins with neither 'json:' nor 'regex:'")
        try:
            made = (
                LLMatcher.grammar_from_json_schema(text) if kind == JSON_SCHEMA else LLMatcher.grammar_from_regex(text)
            )
        except ValueError as error:
            raise _refused(grammar, str(error)) from error
        matcher = LLMatcher(self._tokenizer, made)
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error())
        return matcher


def load_grammar_masks(model_path: str, vocab_size: int) -> GrammarMasks | None:
    """Masks over the model's own ``tokenizer.json``; None where llguidance or that file is missing.

    The caller must then say that grammars were not replayed: scores without their masks are other scores.
    """
    path = Path(model_path) / "tokenizer.json"
    if not model_path or not path.is_file():
        return None
    try:
        from llguidance import LLTokenizer
    except ModuleNotFoundError:
        return None
    return GrammarMasks(LLTokenizer(str(path), n_vocab=vocab_size), vocab_size)


def _refused(grammar: str, found: str) -> ScorerError:
    return ScorerError(
        f"the grammar {grammar[:60]!r} cannot be replayed: {found}",
        why="tokens that the grammar rules out would count as the target's best",
        fix='write it as "json:" and a JSON schema, or "regex:" and a pattern, that llguidance takes',
        code="LG0530",
    )
