"""The table ``[parameters]``: what every test request asks of the sampler besides its length and temperature."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lossguard.errors import UsageError, near_miss

_T = TypeVar("_T")


def request_parameters(table: Mapping[str, Any]) -> dict[str, Any]:
    """Values as ``SamplingParams`` takes them. Raises UsageError LG0630 for an unknown name or an odd value.

    ``logit_bias`` is a table of ids or a list of pairs, ``bad_words`` a list of token-id lists, ``grammar``
    ``json:SCHEMA`` or ``regex:PATTERN``.
    """
    for name in table:
        if name not in _READERS:
            raise _bad(f"an unknown key {name!r}", near_miss(name, _READERS))
    found = {name: _read(name, value, _READERS[name]) for name, value in table.items()}
    if found.get("stop_strings") and found.get("min_tokens"):
        raise _bad("both stop_strings and min_tokens", "Engines differ in what this means: give one of the two.")
    return found


def _read(name: str, value: Any, reader: Callable[[Any], _T]) -> _T:
    try:
        return reader(value)
    except (TypeError, ValueError) as error:
        raise _bad(f"{name} = {str(value)[:80]!r}", f"It must be {_FORMS[name]}.") from error


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -100.0 <= value <= 100.0:
        raise ValueError(value)
    return float(value)


def _share(value: Any) -> float:
    if not 0.0 < _number(value) <= 1.0:
        raise ValueError(value)
    return float(value)


def _floor(value: Any) -> float:
    if not 0.0 <= _number(value) <= 1.0:
        raise ValueError(value)
    return float(value)


def _repetition(value: Any) -> float:
    if not 0.0 < _number(value) <= 10.0:
        raise ValueError(value)
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(value)
    return value


def _grammar(value: Any) -> str:
    if not _text(value).startswith(("json:", "regex:")):
        raise ValueError(value)
    return str(value)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(value)
    return tuple(_text(item) for item in value)


def _words(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, (list, tuple)) and word for word in value):
        raise TypeError(value)
    return tuple(tuple(_count(token) for token in word) for word in value)


def _bias(value: Any) -> tuple[tuple[int, float], ...]:
    pairs = value.items() if isinstance(value, Mapping) else value
    return tuple((_count(int(token)), _number(bias)) for token, bias in pairs)


_READERS: dict[str, Callable[[Any], Any]] = {
    "top_p": _share,
    "top_k": _count,
    "min_p": _floor,
    "repetition_penalty": _repetition,
    "presence_penalty": _number,
    "frequency_penalty": _number,
    "logit_bias": _bias,
    "bad_words": _words,
    "grammar": _grammar,
    "min_tokens": _count,
    "stop_strings": _texts,
    "ignore_eos": _flag,
}
_FORMS = {
    "top_p": "a number over 0 and up to 1",
    "top_k": "a whole number of tokens (0: off)",
    "min_p": "a number from 0 to 1",
    "repetition_penalty": "a number over 0 and up to 10",
    "presence_penalty": "a number between -100 and 100",
    "frequency_penalty": "a number between -100 and 100",
    "logit_bias": "a table from token ids to numbers between -100 and 100",
    "bad_words": "a list of words, each a list of token ids",
    "grammar": '"json:" and a JSON schema, or "regex:" and a pattern',
    "min_tokens": "a whole number of tokens",
    "stop_strings": "a list of strings",
    "ignore_eos": "true or false",
}


def _bad(found: str, fix: str) -> UsageError:
    return UsageError(
        f"[parameters] has {found}",
        why="a parameter that is dropped would be judged as if it had been honoured",
        fix=fix,
        code="LG0630",
    )
