"""The one tree of errors. Each message says what was found, why it matters, what to do, and a code.

The codes are explained in ``docs/errors.md``; a test holds the two together.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class LossguardError(Exception):
    """Base of all errors that lossguard raises on purpose.

    ``exit_code`` is what the CLI returns for it (see ``docs/exit-codes.md``).
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, found: str, *, why: str, fix: str, code: str) -> None:
        self.found = found
        self.why = why
        self.fix = fix
        self.code = code
        super().__init__(f"{found}\n  why it matters: {why}\n  what to do: {fix}\n  reference: {code} (docs/errors.md)")


class UsageError(LossguardError):
    """The caller asked for something that does not exist or does not fit: nothing has run yet."""

    exit_code = 4


class BaselineError(LossguardError):
    """A recorded baseline is missing or not comparable."""

    exit_code = 4


class EngineError(LossguardError):
    """An engine could not start, or broke while it served; what it had served is kept."""


class ScorerError(LossguardError):
    """A scorer could not load or run; scores written so far are kept."""


class IntegrityError(LossguardError):
    """A file in a run folder does not hold what it should."""


class MeasurementError(LossguardError):
    """Something beside the systems stands in the way of a measurement; what was measured is kept."""


class StorageError(LossguardError):
    """The run folder cannot be written (disk full, read-only); what is in it is intact."""


def near_miss(value: str, options: Iterable[str]) -> str:
    """``Did you mean 'x'? Known: 'x', 'y'.`` for an error about an unknown name."""
    known = sorted(options)
    close = difflib.get_close_matches(value, known, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    listing = ", ".join(repr(name) for name in known) or "none"
    return f"{hint}Known: {listing}."
