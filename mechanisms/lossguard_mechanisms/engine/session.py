"""A loaded core in this process: requests in, outputs out as they end."""

from __future__ import annotations

import gc
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from lossguard.engines.base import ForcedPrefix, Pace
from lossguard.engines.extensions import BatchContext
from lossguard.engines.post_processing import post_processed
from lossguard.engines.torch_threads import torch_threads
from lossguard.errors import EngineError
from lossguard.records import Request, ServedOutput
from lossguard_mechanisms.engine import sequence as sequences
from lossguard_mechanisms.engine.core import EngineCore
from lossguard_mechanisms.engine.counter_random import request_key
from lossguard_mechanisms.engine.loading import SystemSpec, load_core
from lossguard_mechanisms.engine.options import resolve_threads
from lossguard_mechanisms.engine.processors import Processing, processing_of
from lossguard_mechanisms.engine.w12_target import Conversion

Result = TypeVar("Result")

STEP_ERRORS = (ArithmeticError, AssertionError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
UNDER_WAY, W12_LAYERS = "under_way", "w12_layers"


class Session:
    """Loads on first use. ``close`` gives the memory back; the next call loads again."""

    def __init__(self, spec: SystemSpec, load: Callable[[SystemSpec], EngineCore] = load_core) -> None:
        self._spec = spec
        self._load = load
        self._core: EngineCore | None = None
        self.conversion: Conversion | None = None
        """Of the core that was loaded last; kept when it is closed."""

    def serve(self, requests: Sequence[Request], pace: Pace | None) -> Iterator[ServedOutput]:
        """Yield outputs as they end, at most ``pace.concurrency`` requests under way (None: as many as fit).

        Raises EngineError LG1501; what was yielded before stays valid, and nothing is left in the engine.
        """
        core, gate = self.core(), _Gate(pace)
        waiting, under_way = deque(requests), dict[str, float]()
        try:
            while waiting or under_way:
                while waiting and gate.opens(len(under_way)):
                    request = waiting.popleft()
                    under_way[request.id] = len(under_way) + 1.0
                    core.add(self._run(partial(self._job, request), f"request {request.id!r}"))
                for ended in self._run(core.step, f"{len(under_way)} requests"):
                    number = under_way.pop(ended.job.request.id)
                    output = post_processed(self._spec.options.post_processors, ended.job.request, ended.output())
                    output = _with_columns(output, self._columns())
                    yield output if pace is None else _with_columns(output, {UNDER_WAY: (number,)})
        finally:
            for request_id in under_way:
                core.cancel(request_id)

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        """Decode together along recorded replies. Raises EngineError LG1501."""
        core, results = self.core(), [()] * len(batch)
        jobs = {f"{index}": prefix for index, prefix in enumerate(batch) if prefix.num_positions}
        for name, prefix in jobs.items():
            forced = prefix.served_ids[: prefix.num_positions]
            job = self._run(partial(self._job, prefix.request), f"request {prefix.request.id!r}")
            named = replace(prefix.request, id=name)  # two prefixes may be of one request
            core.add(replace(job, request=named, stop_ids=frozenset(), forced_ids=forced))
        found: dict[str, tuple[int, ...]] = {}
        while core.has_work:
            for ended in self._run(core.step, f"forced decode of {len(batch)} replies"):
                found[ended.job.request.id] = tuple(ended.served)
        return [found.get(f"{index}", ()) for index in range(len(results))]

    def core(self) -> EngineCore:
        """The core, loaded at the first call."""
        if self._core is None:
            self._core = self._load(self._spec)
            self.conversion = self._core.conversion
        return self._core

    def close(self) -> None:
        """Drop everything."""
        if self._core is None:
            return
        self._core = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _columns(self) -> dict[str, tuple[float, ...]]:
        """How many layers multiplied with W12 weights, whose dense ones are gone: for ``expect``."""
        return {} if self.conversion is None else {W12_LAYERS: (float(self.conversion.num_layers),)}

    def _job(self, request: Request) -> sequences.Job:
        sampling, eos = request.sampling, frozenset(self._spec.facts.eos_ids)
        stops = tuple(token for token in sampling.stop_ids if not sampling.ignore_eos or token not in eos)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        return sequences.Job(
            request=request,
            key=request_key(seed, request.id, request.repeat_id),
            stop_ids=frozenset(stops),
            banned_ids=tuple(sorted(stops)) if sampling.min_tokens else (),
            processing=self._processing(request, stops),
            sent_ns=time.monotonic_ns(),
        )

    def _processing(self, request: Request, stop_ids: tuple[int, ...]) -> Processing | None:
        spec = self._spec
        context = BatchContext(
            requests=(request,),
            prompt_length=len(request.prompt_ids),
            stop_ids=stop_ids,
            vocab_size=spec.facts.vocab_size,
            model_path=spec.model_path,
        )
        return processing_of(spec.options.logits_processors, context)

    def _run(self, work: Callable[[], Result], what: str) -> Result:
        with torch_threads(resolve_threads(self._spec.options)[0]):
            try:
                return work()
            except STEP_ERRORS as error:
                self._core = None  # its states may be half written
                raise _broke(self._spec.name, what, error) from error


class _Gate:
    """When the next request may be sent."""

    def __init__(self, pace: Pace | None) -> None:
        self._pace = pace
        self._num_sent = 0
        self._next_ns = 0

    def opens(self, num_under_way: int) -> bool:
        """Whether one may be sent now; counts it if so. The first ones are staggered, but the engine never idles."""
        if self._pace is None:
            return True
        is_first = self._num_sent < self._pace.concurrency
        is_early = is_first and num_under_way > 0 and time.monotonic_ns() < self._next_ns
        if num_under_way >= self._pace.concurrency or is_early:
            return False
        self._num_sent += 1
        self._next_ns = time.monotonic_ns() + int(self._pace.stagger_seconds * 1e9)
        return True


def _with_columns(output: ServedOutput, columns: Mapping[str, tuple[float, ...]]) -> ServedOutput:
    return replace(output, telemetry={**output.telemetry, **columns}) if columns else output


def _broke(name: str, what: str, error: BaseException) -> EngineError:
    return EngineError(
        f"the system {name!r} broke on {what}: {type(error).__name__}: {error}",
        why="the replies that are missing could be the ones that differ",
        fix="look at the error above; out of memory: lower slots or cache_tokens. Finished replies are kept (--resume)",
        code="LG1501",
    )
