"""Delays of known length, planted inside generation: what a timing instrument must find.

[systems.slower]
engine = "transformers"
batch_size = 1
logits_processors = [{ factory = "lossguard_suites.timing.planted:delay_every_token", seconds = 0.002 }]
"""

from __future__ import annotations

import time
from typing import Any

from transformers import LogitsProcessor

from lossguard.engines.extensions import BatchContext


class Delay(LogitsProcessor):
    """Waits before every token and changes nothing."""

    def __init__(self, seconds: float, *, is_busy: bool) -> None:
        self._seconds = seconds
        self._is_busy = is_busy

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        wait(self._seconds, is_busy=self._is_busy)
        return scores


def delay_every_token(_context: BatchContext, *, seconds: float, busy: bool = True) -> Delay:
    """A delay per decoding step. ``busy`` spins, which is exact to microseconds; sleeping gives the core away."""
    return Delay(seconds, is_busy=busy)


def wait(seconds: float, *, is_busy: bool) -> None:
    """Let time pass."""
    if not is_busy:
        time.sleep(seconds)
        return
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
