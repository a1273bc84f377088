"""The engine behind every server: attach or launch, ask concurrently, read strictly."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lossguard.engines.base import Capabilities, EngineSpec, ForcedPrefix, Pace
from lossguard.engines.model_facts import ModelFacts, read_model_facts
from lossguard.engines.request_checks import RequestLimits, check_requests
from lossguard.engines.servers import problems
from lossguard.engines.servers.concurrent_serving import Ask, Exchange, Traffic, serve_concurrently
from lossguard.engines.servers.counters import increase, read_counters
from lossguard.engines.servers.dialect import Dialect
from lossguard.engines.servers.log_facts import facts_in_log
from lossguard.engines.servers.options import ServerOptions, read_options
from lossguard.engines.servers.server import Server
from lossguard.engines.servers.transport import Transport
from lossguard.errors import EngineError
from lossguard.records import Request, ServedOutput

METRICS_SECONDS = 1.0  # between two readings of /metrics


class ServerEngine:
    """One server system; see ``lossguard.engines.base.Engine`` for the contract of each method.

    A launched server starts with the first request and ends with ``close``, after which another request starts it
    again: so that one accelerator can hold stock, candidates and scorer one after the other.
    """

    def __init__(self, spec: EngineSpec, dialect: Dialect, options: ServerOptions, model: ModelFacts) -> None:
        self._spec = spec
        self._dialect = dialect
        self._options = options
        self._model = model
        self._server = Server(spec, dialect.facts, options)

    @property
    def capabilities(self) -> Capabilities:
        """What this kind of server can do, known without it."""
        facts = self._dialect.facts
        return Capabilities(
            sampling=facts.sampling,
            token_ids_out=facts.token_ids_out,
            max_logprobs=facts.max_logprobs,
            test_logprobs=min(self._options.logprobs, facts.max_logprobs),
            forced_decode=False,
            seeds=facts.seeds,
            telemetry=facts.telemetry,
            logit_dtype=self._options.logit_dtype,
            concurrency=self._options.concurrency,
        )

    @property
    def devices(self) -> frozenset[str]:
        """Accelerators that the server holds while it runs; empty for one behind a url."""
        return frozenset(self._options.devices)

    def fingerprint(self) -> Mapping[str, Any]:
        """The configuration without what changes from start to start, and the server's version where it can be had."""
        return self._server.fingerprint()

    def loaded_facts(self) -> Mapping[str, Any]:
        """What plug-ins have said in the log of a launched server while it runs."""
        return facts_in_log(self._server.log)

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        """Ask all of them, ``concurrency`` at a time.

        Raises UsageError LG0207 or LG0208 before anything starts; EngineError LG0220 to LG0227 later, after every
        reply that arrived whole has been yielded. Nothing is asked twice.
        """
        check_requests(requests, self._limits())
        options = self._options
        return self._served(requests, Traffic(concurrency=options.concurrency, stagger_seconds=options.stagger))

    def serve_paced(self, requests: Sequence[Request], pace: Pace) -> Iterator[ServedOutput]:
        """As ``serve``, at another pace; ``under_way`` is what this client had sent and not yet got back."""
        check_requests(requests, self._limits())
        counted = UnderWay()
        traffic = Traffic(concurrency=pace.concurrency, stagger_seconds=pace.stagger_seconds)
        return self._served(requests, traffic, counted)

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        """Always raises EngineError LG0213: a server decides itself what it decodes."""
        raise problems.no_forced_decode(self._spec.name, len(batch))

    def start(self) -> str:
        """Make sure that the server runs and is healthy; returns its URL. Raises as ``serve``."""
        return self._server.start()

    @property
    def is_running(self) -> bool:
        """Whether a launched server holds its devices now."""
        return self._server.is_launched

    @property
    def exit_code(self) -> int | None:
        """Of a launched server that has ended by itself; None while it runs."""
        return self._server.exit_code

    @property
    def log(self) -> Path | None:
        """Where a launched server's output goes while it runs."""
        return self._server.log

    def close(self) -> None:
        """End a launched server and wait until its devices are free; leave one behind a url alone."""
        self._server.close()

    def _limits(self) -> RequestLimits:
        facts = self._dialect.facts
        return RequestLimits(
            engine=facts.name,
            sampling=facts.sampling,
            max_logprobs=facts.max_logprobs,
            vocab_size=self._model.vocab_size,
            max_positions=None,  # the server's own limit may be smaller or larger; it says so itself
        )

    def _served(
        self, requests: Sequence[Request], traffic: Traffic, counted: UnderWay | None = None
    ) -> Iterator[ServedOutput]:
        if not requests:
            return
        self._server.start()
        try:
            yield from serve_concurrently(lambda: self._exchange(traffic, counted), requests, traffic)
        except EngineError as error:
            self._server.explain(error)
            raise

    @asynccontextmanager
    async def _exchange(self, traffic: Traffic, counted: UnderWay | None) -> AsyncIterator[Exchange]:
        transport = Transport(self._server.address(), concurrency=traffic.concurrency)
        try:
            model_name = await self._server.model_name(transport)
            meter = Meter(transport, self._dialect.facts.counters if self._options.metrics else {})
            await meter.read()

            async def ask(request: Request) -> ServedOutput:
                question = self._dialect.question(request, model_name, stream=self._options.stream)
                return await transport.ask(self._dialect, request, question, stream=self._options.stream)

            yield Exchange(ask=ask if counted is None else counted.around(ask), finished=meter.finished)
        finally:
            await transport.close()


class UnderWay:
    """Counts the requests that this client has sent and not yet got back."""

    def __init__(self) -> None:
        self._number = 0

    def around(self, ask: Ask) -> Ask:
        """The same, with the count at its sending, itself included, as the telemetry column ``under_way``."""

        async def counted(request: Request) -> ServedOutput:
            self._number += 1
            number = float(self._number)
            try:
                output = await ask(request)
            finally:
                self._number -= 1
            return replace(output, telemetry={**output.telemetry, "under_way": (number,)})

        return counted


class Meter:
    """Adds what the server's counters gained to the outputs: about one a second, and always the last."""

    def __init__(self, transport: Transport, names: Mapping[str, str]) -> None:
        self._transport = transport
        self._names = names
        self._last: dict[str, float] = {}
        self._read_at = 0.0
        self._lock = asyncio.Lock()

    async def finished(self, output: ServedOutput, num_open: int) -> ServedOutput:
        """The output with the counters' gain since the last reading, if it is time for one."""
        if not self._names or (num_open and time.monotonic() - self._read_at < METRICS_SECONDS):
            return output
        async with self._lock:
            before = self._last
            await self.read()
            return replace(output, telemetry={**output.telemetry, **increase(before, self._last)})

    async def read(self) -> None:
        """Read the counters; a server that shows none has none, and what is expected of them stays unmet."""
        self._read_at = time.monotonic()
        if not self._names:
            return
        try:
            body = await self._transport.get("/metrics")
        except EngineError:  # telemetry is no reply: without it vacuity is INCONCLUSIVE, and says so
            self._last = {}
            return
        self._last = read_counters(body.decode("utf-8", "replace"), self._names)


def create_with(dialect: Dialect, spec: EngineSpec) -> ServerEngine:
    """An engine of that kind from the system's options. Raises UsageError LG0204, LG0206 or LG0230."""
    model = read_model_facts(spec.model_path)
    facts = dialect.facts
    options = read_options(
        spec,
        model_dtype=model.dtype,
        default_dtype=facts.default_logit_dtype,
        default_stream=facts.streams_all_ids,
    )
    if options.api_key_env is not None and not os.environ.get(options.api_key_env):
        raise problems.no_key(spec.name, options.api_key_env)
    return ServerEngine(spec, dialect, options, model)
