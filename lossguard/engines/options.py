"""Checking the options of an engine: unknown keys name the near miss, values have the right type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lossguard.engines.base import EngineSpec
from lossguard.errors import UsageError, near_miss


def refuse_unknown(spec: EngineSpec, known: Iterable[str]) -> None:
    """Raise UsageError LG0204 for the first option that the engine does not have."""
    names = tuple(known)
    for key in spec.options:
        if key not in names:
            raise bad_option(spec.name, f"has an unknown option {key!r}. {near_miss(key, names)}")


def bad_option(system: str, found: str) -> UsageError:
    """The error for an option that does not fit (LG0204)."""
    return UsageError(
        f"the system {system!r} {found}",
        why="an option that is quietly ignored would serve something else than what was asked",
        fix=f"correct the table [systems.{system}]; docs/engines.md lists the options of every engine",
        code="LG0204",
    )


@dataclass(frozen=True, slots=True)
class OptionReader:
    """Typed access to one system's options. Every method raises UsageError LG0204 on a value that does not fit."""

    system: str
    options: Mapping[str, Any]

    def choice(self, key: str, default: str, allowed: tuple[str, ...]) -> str:
        """One of ``allowed``."""
        value = self.options.get(key, default)
        if value not in allowed:
            raise bad_option(self.system, f"has {key} = {value!r}. {near_miss(str(value), allowed)}")
        return str(value)

    def optional_choice(self, key: str, allowed: tuple[str, ...]) -> str | None:
        """One of ``allowed``, or None if the option is absent."""
        return self.choice(key, allowed[0], allowed) if key in self.options else None

    def text(self, key: str, default: str) -> str:
        """A string that is not empty."""
        value = self.options.get(key, default)
        if not isinstance(value, str) or not value:
            raise bad_option(self.system, f"has {key} = {value!r}, which should be a string")
        return value

    def optional_text(self, key: str) -> str | None:
        """A string, or None if the option is absent."""
        return self.text(key, "") if key in self.options else None

    def positive(self, key: str, default: int) -> int:
        """A whole number of at least 1."""
        value = self.options.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise bad_option(self.system, f"has {key} = {value!r}, which should be a whole number of at least 1")
        return value

    def optional_positive(self, key: str) -> int | None:
        """A whole number of at least 1, or None if the option is absent."""
        return self.positive(key, 1) if key in self.options else None

    def flag(self, key: str, *, default: bool) -> bool:
        """true or false."""
        value = self.options.get(key, default)
        if not isinstance(value, bool):
            raise bad_option(self.system, f"has {key} = {value!r}, which should be true or false")
        return value
