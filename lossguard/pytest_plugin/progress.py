"""How far a claim has come, on the test's stdout: live with ``pytest -s``, else beside a failure."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

STEP_S = 10.0  # at most so often a line while a stage goes on


class StdoutListener:
    """Follows a run in lines of text; the verdict itself is the summary's."""

    def message(self, text: str) -> None:
        """A line, now."""
        _write(f"lossguard: {text}")

    @contextmanager
    def stage(self, title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        """A line when it begins, at most one every few seconds, and one when it ends."""
        started = said = time.monotonic()
        count = 0

        def advance(amount: int) -> None:
            nonlocal count, said
            count += amount
            if time.monotonic() - said > STEP_S:
                said = time.monotonic()
                self.message(f"{title}: {count:,} of {total:,} {unit}")

        if total == 0:
            yield advance
            return
        self.message(f"{title}: {total:,} {unit}")
        yield advance
        self.message(f"{title}: {count:,} {unit} in {time.monotonic() - started:.0f} s")

    def thresholds(self, head: Mapping[str, Any]) -> None:
        """What stock's calibration has found."""
        from lossguard.report.terminal import render_header

        _write(render_header(head))

    def claim(self, claim: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Left to the summary."""


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
