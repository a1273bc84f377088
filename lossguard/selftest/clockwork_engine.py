"""An engine that takes as long as it is told: ``engine = "lossguard.selftest.clockwork_engine:create"``.

It spins until a token is due, so that its speed is known to microseconds on a core of its own. Tokens are a fixed
function of the prompt. For proving the instrument, never for serving.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lossguard.engines.base import Capabilities, EngineSpec, ForcedPrefix
from lossguard.engines.options import bad_option, refuse_unknown
from lossguard.errors import EngineError
from lossguard.records import FinishReason, Request, ServedOutput

NUM_IDS = 97


class ClockworkEngine:
    """See ``lossguard.engines.base.Engine`` for the contract of each method."""

    def __init__(self, token_seconds: float) -> None:
        self._token_seconds = token_seconds
        self._num_open = 0

    @property
    def capabilities(self) -> Capabilities:
        """Replies of a fixed length, one request at a time."""
        return Capabilities(sampling=frozenset({"ignore_eos", "stop_ids"}))

    def fingerprint(self) -> Mapping[str, Any]:
        """Its one option."""
        return {"engine": "clockwork", "token_seconds": self._token_seconds}

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        """One reply after the other, in order."""
        for request in requests:
            yield self._reply(request)

    def reset(self) -> Mapping[str, Any]:
        """It keeps nothing between requests."""
        return {"open_requests": self._num_open}

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        """Always raises EngineError LG0213."""
        raise EngineError(
            f"the clockwork engine cannot be decoded along {len(batch)} recorded replies",
            why="forced decode shows what stock serves token by token",
            fix="audit with a stock system that serves a model",
            code="LG0213",
        )

    def close(self) -> None:
        """Nothing is held."""

    def _reply(self, request: Request) -> ServedOutput:
        count, first = request.sampling.max_tokens, sum(request.prompt_ids)
        sent_ns = time.monotonic_ns()
        step_ns = round(self._token_seconds * 1e9)
        arrivals = []
        for number in range(1, count + 1):
            while time.monotonic_ns() < sent_ns + number * step_ns:
                pass
            arrivals.append(time.monotonic_ns())
        return ServedOutput(
            request_id=request.id,
            ids=tuple((first + at) % NUM_IDS for at in range(count)),
            finish_reason=FinishReason.LENGTH,
            sent_ns=sent_ns,
            arrival_ns=tuple(arrivals),
        )


def create(spec: EngineSpec) -> ClockworkEngine:
    """The factory. Option: ``token_seconds``. Raises UsageError LG0204."""
    refuse_unknown(spec, ("token_seconds",))
    seconds = spec.options.get("token_seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds <= 0:
        raise bad_option(spec.name, f"has token_seconds = {seconds!r}, which should be a number above 0")
    return ClockworkEngine(float(seconds))
