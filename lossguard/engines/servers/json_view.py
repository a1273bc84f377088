"""Strict reading of JSON that a server sent: every wrong type is named with its place."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lossguard.engines.servers.problems import MalformedReplyError

LARGEST_INTEGER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class JsonView:
    """A JSON value and where it stands. Every method raises MalformedReplyError on another type."""

    value: Any
    path: str = "$"

    def member(self, key: str) -> JsonView:
        """The value of a key that must be there (it may be null)."""
        table = self._object()
        if key not in table:
            raise MalformedReplyError(f"{self.path} has no {key!r}")
        return JsonView(table[key], f"{self.path}.{key}")

    def optional(self, key: str) -> JsonView | None:
        """The value of a key, or None if it is missing or null."""
        value = self._object().get(key)
        return None if value is None else JsonView(value, f"{self.path}.{key}")

    def items(self) -> list[JsonView]:
        """The items of an array."""
        if not isinstance(self.value, list):
            raise self._wrong("an array")
        return [JsonView(item, f"{self.path}[{index}]") for index, item in enumerate(self.value)]

    def pairs(self) -> list[tuple[str, JsonView]]:
        """Keys and values of an object, in the order sent."""
        return [(key, JsonView(item, f"{self.path}.{key}")) for key, item in self._object().items()]

    def only_item(self) -> JsonView:
        """The one item of an array that must have exactly one."""
        items = self.items()
        if len(items) != 1:
            raise MalformedReplyError(f"{self.path} has {len(items)} items where one was asked for")
        return items[0]

    def integer(self) -> int:
        """A whole number that 64 bits hold."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong("a whole number")
        if not -LARGEST_INTEGER <= value <= LARGEST_INTEGER:
            raise MalformedReplyError(f"{self.path} is a whole number of {value.bit_length()} bits")
        return value

    def count(self) -> int:
        """A whole number of at least 0."""
        value = self.integer()
        if value < 0:
            raise MalformedReplyError(f"{self.path} is {value}, which counts nothing")
        return value

    def number(self) -> float:
        """A number; null, NaN and infinity are NaN and infinity, which is for the checks to judge."""
        if self.value is None:
            return math.nan
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            raise self._wrong("a number")
        try:
            return float(self.value)
        except OverflowError:
            return math.inf if self.value > 0 else -math.inf

    def text(self) -> str:
        """A string."""
        if not isinstance(self.value, str):
            raise self._wrong("a string")
        return self.value

    def integers(self) -> list[int]:
        """An array of whole numbers."""
        return [item.integer() for item in self.items()]

    def _object(self) -> Mapping[str, Any]:
        if not isinstance(self.value, dict):
            raise self._wrong("an object")
        return self.value

    def _wrong(self, wanted: str) -> MalformedReplyError:
        kind = "null" if self.value is None else type(self.value).__name__
        return MalformedReplyError(f"{self.path} is {kind}, not {wanted}")


def parse_json(raw: bytes) -> JsonView:
    """Parse one JSON document. Raises MalformedReplyError; NaN and Infinity are taken, since servers send them."""
    try:
        return JsonView(json.loads(raw))
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, too deep, a number of too many digits
        raise MalformedReplyError(f"not JSON: {type(error).__name__}: {str(error)[:120]}") from error
