"""Exercise: how a system's requests are sent so that a path of its server runs, and what must then have happened.

Declared in the system's table: ``exercise = { concurrency = [1, 8, 32], repeats = 3, preemption = true,
chunked_prefill = 512, long = 1024 }``. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from lossguard.errors import UsageError, near_miss

MOST: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """Each part off where it is empty, 0 or False."""

    concurrency: tuple[int, ...] = ()
    """Levels one after the other, each with a share of the requests: so many replies must have grown together."""
    repeats: int = 0
    """Every prompt so often, in waves (``--repeats``): a miss of the prefix cache first, then hits."""
    preemption: bool = False
    """The launch command gives the server too small a pool: replies must have been preempted."""
    chunked_prefill: int = 0
    """Tokens of a prefill chunk, as in the launch command: prompts must have been longer, cached tokens aside."""
    long: int = 0
    """Tokens that at least one reply must have reached."""

    @property
    def shapes_traffic(self) -> bool:
        """Whether requests are sent in another way than all at once."""
        return bool(self.concurrency or self.repeats)


NAMES: Final = tuple(Exercise.__dataclass_fields__)


def make_exercise(table: Mapping[str, Any]) -> Exercise:
    """Check a system's ``exercise`` table. Raises UsageError LG0622."""
    for name, value in table.items():
        if name not in NAMES:
            raise _bad(f"has an unknown part {name!r}. {near_miss(name, NAMES)}")
        if not _fits(name, value):
            raise _bad(f"has {name} = {value!r}, which should be {_WANTED[name]}")
    levels = tuple(table.get("concurrency", ()))
    return Exercise(**{**table, **({"concurrency": levels} if levels else {})})


_WANTED: Final = {
    "concurrency": "a list of ascending numbers of requests, such as [1, 8, 32]",
    "repeats": "how often every prompt is asked, 2 at least",
    "preemption": "true or false",
    "chunked_prefill": "the tokens of a prefill chunk",
    "long": "a number of tokens",
}


def _fits(name: str, value: Any) -> bool:
    if name == "preemption":
        return isinstance(value, bool)
    if name == "concurrency":
        listed = isinstance(value, (list, tuple)) and bool(value) and all(_is_count(item, 1) for item in value)
        return listed and all(low < high for low, high in pairwise(value))
    return _is_count(value, 2 if name == "repeats" else 1)


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST


def _bad(found: str) -> UsageError:
    return UsageError(
        f"an exercise table {found}",
        why="a path that was to be exercised and was not would be covered by nothing",
        fix="correct exercise in the system's table; docs/engines.md lists its parts",
        code="LG0622",
    )
