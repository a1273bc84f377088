"""Progress on stderr (only where it is a terminal), results on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lossguard.report.terminal import render_claim, render_header


class ConsoleListener:
    """Prints claims as they are decided; long work shows a bar on a terminal and one line elsewhere."""

    def __init__(self) -> None:
        self._errors = Console(stderr=True, highlight=False)

    def message(self, text: str) -> None:
        """A line on stderr."""
        self._errors.print(text, markup=False)

    @contextmanager
    def stage(self, title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        """A progress bar, or a line when the stage ends where stderr is no terminal."""
        started, count = time.monotonic(), [0]
        if not self._errors.is_terminal:
            yield lambda amount: count.__setitem__(0, count[0] + amount)
            self.message(f"{title}: {count[0]:,} {unit} in {time.monotonic() - started:.0f} s")
            return
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
        with Progress(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self._errors, transient=True
        ) as bar:
            task = bar.add_task(title, total=max(1, total))
            yield lambda amount: bar.update(task, advance=amount)

    def thresholds(self, head: Mapping[str, Any]) -> None:
        """The header: thresholds and power."""
        write(render_header(head))

    def claim(self, claim: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """A claim's table, as soon as it is decided."""
        write(render_claim(claim, run))


def write(text: str) -> None:
    """Text on stdout, now."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
