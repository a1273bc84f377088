"""An engine whose speed is known: so many seconds a token. Its tokens are a fixed function of the prompt."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lossguard.engines.base import Capabilities, EngineSpec, ForcedPrefix
from lossguard.errors import EngineError
from lossguard.records import FinishReason, Request, ServedOutput


@dataclass
class ToyOptions:
    """How fast, and how it cheats."""

    token_seconds: float = 0.0005
    busy: bool = False
    jitter: float = 0.0
    slow_warm_up: float = 1.0  # factor on the first requests of a process
    cache: bool = False  # remembers prompts that it has seen, in a file that outlives it
    short: int = 0  # tokens left out of a reply
    fail_every: int = 0
    tail_factor: float = 1.0  # of every tenth request
    die_in_launch: int = 0  # exits in the middle of its nth launch
    hang: bool = False
    launches: str = ""  # a file that counts launches
    seen: str = ""
    can_reset: bool = False
    forgets: bool = True
    other_tokens: bool = False
    patch_clock: bool = False
    work_behind: float = 0.0  # seconds of work after each reply was given


@dataclass
class ToyEngine:
    """Sleeps for every token."""

    options: ToyOptions
    num_served: int = 0
    launch: int = 0
    state: list[str] = field(default_factory=list)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(sampling=frozenset({"ignore_eos", "stop_ids"}), concurrency=4)

    def fingerprint(self) -> Mapping[str, Any]:
        return {"kind": "toy", **vars(self.options)}

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        for request in requests:
            yield self._reply(request)
            time.sleep(self.options.work_behind)

    def reset(self) -> Mapping[str, Any]:
        if not self.options.can_reset:
            return {}
        if self.options.forgets:
            self.state.clear()
        return {"state": len(self.state)}

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to give back."""

    def _reply(self, request: Request) -> ServedOutput:
        options = self.options
        self.num_served += 1
        self.state.append(request.id)
        if options.fail_every and self.num_served % options.fail_every == 0:
            raise EngineError("the toy failed", why="it was told to", fix="nothing", code="LG0608")
        if options.die_in_launch == self.launch and options.die_in_launch and self.num_served == 3:
            os._exit(9)
        if options.hang and self.num_served == 3:
            time.sleep(1_000)
        count = request.sampling.max_tokens - options.short
        sent_ns = time.monotonic_ns()
        arrivals = []
        factor = self._factor(request)
        for _ in range(count):
            self._spend(options.token_seconds * factor)
            arrivals.append(time.monotonic_ns())
        start = sum(request.prompt_ids) + (1 if options.other_tokens else 0)
        return ServedOutput(
            request_id=request.id,
            ids=tuple((start + at) % 50 + 2 for at in range(count)),
            finish_reason=FinishReason.LENGTH,
            sent_ns=sent_ns,
            arrival_ns=tuple(arrivals),
        )

    def _factor(self, request: Request) -> float:
        options = self.options
        factor = options.slow_warm_up if self.num_served <= 2 else 1.0
        if options.tail_factor != 1.0 and int(request.id.strip("pw")) % 5 == 0:
            factor *= options.tail_factor
        if options.cache and self._has_seen(request):
            factor *= 0.1
        return factor

    def _has_seen(self, request: Request) -> bool:
        path = Path(self.options.seen)
        key = str(hash(request.prompt_ids))
        known = path.read_text().split() if path.exists() else []
        if key in known:
            return True
        with path.open("a") as file:
            file.write(key + "\n")
        return False

    def _spend(self, seconds: float) -> None:
        if not self.options.busy:
            time.sleep(seconds)
            return
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass


def create(spec: EngineSpec) -> ToyEngine:
    """An engine factory."""
    options = ToyOptions(**spec.options)
    if options.patch_clock:
        time.monotonic_ns = lambda: 1
    launch = 0
    if options.launches:
        with Path(options.launches).open("a") as file:
            file.write("x")
        launch = len(Path(options.launches).read_text())
    return ToyEngine(options, launch=launch)
