"""Text from templates, drawn again until it shares no passage with any text before it.

A passage is nine pieces in a row; a piece is a word, a digit or another sign. That is a stand-in for 13 tokens that
needs no tokenizer: few tokenizers make more than 1.4 tokens of a piece over nine pieces in a row.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lossguard.errors import UsageError

PASSAGE_LENGTH = 9
_DRAWS_PER_PART = 40
_TEMPLATES_TRIED = 60
_PIECE = re.compile(r"[^\W\d_]+|\S")
_SLOT = re.compile(r"\{(?:(\d+)\.\.(\d+)|(\w+))(?::(\w+))?\}")
_PART_END = re.compile(r"(?<=[.!?;:,] )")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeio]|u(?!ni|se))")
_SENTENCE_START = re.compile(r"(^|[.!?]['\"]? )([a-z])")

Words = Mapping[str, Sequence[str]]


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has: pieces, and one more for every long word."""
    pieces = _PIECE.findall(text)
    return len(pieces) + sum(len(piece) > 10 for piece in pieces)


def fill(template: str, words: Words, rng: random.Random, chosen: dict[str, str] | None = None) -> str:
    """Fill a template's slots.

    ``{word}`` draws from ``words["word"]``, ``{3..40}`` draws a number. With a label, as in ``{name:a}`` or
    ``{3..40:n}``, the same slot has the same value everywhere, and slots of one word with different labels differ.
    A drawn word may hold slots itself. ``chosen`` keeps the labelled values, for parts of one text.
    """
    known: dict[str, str] = {} if chosen is None else chosen

    def value(match: re.Match[str]) -> str:
        low, high, word, label = match.groups()
        key = f"{word or 'number'}:{label}"
        if label and key in known:
            return known[key]
        if word is None:
            drawn = str(rng.randint(int(low), int(high)))
        else:
            taken = {other for name, other in known.items() if name.startswith(f"{word}:")}
            drawn = _SLOT.sub(value, rng.choice(words[word]))
            while drawn in taken and len(taken) < len(words[word]):
                drawn = _SLOT.sub(value, rng.choice(words[word]))
        if label:
            known[key] = drawn
        return drawn

    return _SLOT.sub(value, template)


def polish(text: str) -> str:
    """``a`` becomes ``an`` where it must, and sentences begin with a capital."""
    text = _ARTICLE.sub(r"\1n ", text)
    return _SENTENCE_START.sub(lambda match: match.group(1) + match.group(2).upper(), text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    templates: Sequence[str]
    words: Words
    ending: str
    most: int | None


class DistinctWriter:
    """Writes texts one after the other; none shares a passage with an earlier one."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def start(self, rng: random.Random) -> Draft:
        """Begin a text with its own random numbers."""
        return Draft(rng, self._seen)


class Draft:
    """One text in the making. ``finish`` hands it over and reserves its passages."""

    def __init__(self, rng: random.Random, seen: set[str]) -> None:
        self.rng = rng
        self._text = ""
        self._pieces: list[str] = []
        self._history: list[tuple[str, list[str], _Writing]] = []  # before each write, and what was wanted
        self._seen = seen

    @property
    def num_tokens(self) -> int:
        """Estimated tokens so far."""
        return estimate_tokens(self._text)

    def write(self, templates: Sequence[str], words: Words, *, ending: str = "", most: int | None = None) -> None:
        """Append one of the templates, filled so that it is new and the text has at most ``most`` tokens.

        ``ending`` is added to it and checked with it. A template is drawn part by part, a part again while it is not
        new; where no template gives a new text, what was written before it is taken back, one write at a time, and
        written again. Raises UsageError (LG0419) when that does not help either.
        """
        self._write(_Writing(templates=templates, words=words, ending=ending, most=most), num_takes_back=3)

    def _write(self, wanted: _Writing, num_takes_back: int) -> None:
        before = (self._text, self._pieces)
        for _ in range(_TEMPLATES_TRIED):
            drawn = self._write_parts(self.rng.choice(wanted.templates) + wanted.ending, wanted.words)
            if drawn and (wanted.most is None or self.num_tokens <= wanted.most):
                self._history.append((*before, wanted))
                return
            self._text, self._pieces = before
        if not num_takes_back or not self._history:
            raise _ran_dry(len(wanted.templates))
        self._text, self._pieces, previous = self._history.pop()
        self._write(previous, num_takes_back - 1)
        self._write(wanted, num_takes_back - 1)

    def drop_ending(self, ending: str) -> None:
        """Take ``ending`` off the text, if it ends so."""
        self._text = self._text.removesuffix(ending)
        self._pieces = _pieces(self._text)

    def finish(self) -> str:
        """The text; later drafts of the same writer will not share a passage with it."""
        self._seen.update(_passages(self._pieces, 0))
        return polish(self._text)

    def _write_parts(self, template: str, words: Words) -> bool:
        chosen: dict[str, str] = {}
        return all(self._write_part(part, words, chosen) for part in _PART_END.split(template))

    def _write_part(self, part: str, words: Words, chosen: dict[str, str]) -> bool:
        for _ in range(_DRAWS_PER_PART):
            drawn = dict(chosen)
            text = fill(part, words, self.rng, drawn)
            pieces = self._pieces + _pieces(text)
            if not any(passage in self._seen for passage in _passages(pieces, len(self._pieces))):
                self._text += text
                self._pieces = pieces
                chosen.update(drawn)
                return True
        return False


def _pieces(text: str) -> list[str]:
    return ["a" if piece in ("an", "An") else piece.lower() for piece in _PIECE.findall(text)]


def _passages(pieces: Sequence[str], start: int) -> list[str]:
    """Passages that end at piece ``start`` or later."""
    first = max(0, start - PASSAGE_LENGTH + 1)
    return [" ".join(pieces[i : i + PASSAGE_LENGTH]) for i in range(first, len(pieces) - PASSAGE_LENGTH + 1)]


def _ran_dry(num_templates: int) -> UsageError:
    return UsageError(
        f"the prompt generator found no text of {num_templates} templates that shares no passage with earlier text",
        why="prompts that share passages are one cluster and add no evidence",
        fix="ask for fewer prompts, or allow longer ones (max_prompt_tokens)",
        code="LG0419",
    )
