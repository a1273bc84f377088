"""How a front follows a run: messages, progress, claims as they are decided. The gate never prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol


class Listener(Protocol):
    """What the gate tells a front. Every method may do nothing."""

    def message(self, text: str) -> None:
        """A line for people."""

    def stage(self, title: str, total: int, unit: str) -> AbstractContextManager[Callable[[int], None]]:
        """Long work begins; the callable advances it by a number of units."""

    def thresholds(self, head: Mapping[str, Any]) -> None:
        """Thresholds are frozen: systems, limits and power, before any candidate is judged."""

    def claim(self, claim: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """A claim has its verdict; ``claim`` and ``run`` are as in the JSON report."""


class SilentListener:
    """Follows nothing: the default of the Python call."""

    def message(self, text: str) -> None:
        """Ignored."""

    @contextmanager
    def stage(self, title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        """Progress is ignored."""
        yield lambda _advance: None

    def thresholds(self, head: Mapping[str, Any]) -> None:
        """Ignored."""

    def claim(self, claim: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Ignored."""
