"""Many requests at once from an ordinary iterator: an event loop in a thread, outputs through a queue."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from lossguard.errors import LossguardError
from lossguard.records import Request, ServedOutput

Ask = Callable[[Request], Awaitable[ServedOutput]]
Finished = Callable[[ServedOutput, int], Awaitable[ServedOutput]]
"""Told each output and how many requests are still unanswered, before the output is handed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """How requests reach the server."""

    concurrency: int
    stagger_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One way to have a request answered, opened once per call of ``serve``."""

    ask: Ask
    finished: Finished


def serve_concurrently(
    open_exchange: Callable[[], AbstractAsyncContextManager[Exchange]],
    requests: Sequence[Request],
    traffic: Traffic,
) -> Iterator[ServedOutput]:
    """Yield outputs as they finish, at most ``concurrency`` requests under way.

    After the first error no further request is sent; those under way are waited for and yielded, then the error is
    raised: what a server has answered is never thrown away. An iterator that is given up cancels what is under way.
    """
    results: queue.SimpleQueue[ServedOutput | None] = queue.SimpleQueue()
    work = _Work(open_exchange, tuple(requests), traffic, results.put)
    with ThreadPoolExecutor(1, thread_name_prefix="lossguard-serving") as thread:
        done = thread.submit(work.run)
        try:
            while (result := results.get()) is not None:
                yield result
            done.result()
        finally:
            work.cancel()


class _Work:
    """The thread's side."""

    def __init__(
        self,
        open_exchange: Callable[[], AbstractAsyncContextManager[Exchange]],
        requests: tuple[Request, ...],
        traffic: Traffic,
        put: Callable[[ServedOutput | None], None],
    ) -> None:
        self._open_exchange = open_exchange
        self._requests = requests
        self._traffic = traffic
        self._put = put
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False
        self._lock = threading.Lock()
        self._error: LossguardError | None = None
        self._num_open = len(requests)

    def run(self) -> None:
        """Until everything is answered, failed or cancelled; None is put last, then the first error is raised."""
        try:
            with self._lock:
                self._task = None if self._is_cancelled else self._loop.create_task(self._serve())
            if self._task is not None:
                with contextlib.suppress(asyncio.CancelledError):
                    self._loop.run_until_complete(self._task)
        finally:
            with self._lock:
                self._task = None
            try:
                self._loop.run_until_complete(self._loop.shutdown_asyncgens())  # an error leaves requests in turn
                self._loop.close()
            finally:
                self._put(None)
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """From the consumer's thread: stop as soon as possible."""
        with self._lock:
            self._is_cancelled = True
            if self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)

    async def _serve(self) -> None:
        waiting = _in_turn(self._requests, self._traffic.stagger_seconds, self._traffic.concurrency)
        async with self._open_exchange() as exchange, asyncio.TaskGroup() as workers:
            turns = asyncio.Lock()
            for _ in range(min(self._traffic.concurrency, len(self._requests))):
                workers.create_task(self._worker(exchange, waiting, turns))

    async def _worker(self, exchange: Exchange, waiting: AsyncIterator[Request], turns: asyncio.Lock) -> None:
        while self._error is None:
            async with turns:
                request = await anext(waiting, None)
            if request is None or self._error is not None:
                return
            await self._one(exchange, request)

    async def _one(self, exchange: Exchange, request: Request) -> None:
        try:
            output = await exchange.ask(request)
        except LossguardError as error:  # the others under way go on; it is raised when they are done
            self._error = self._error or error
            return
        self._num_open -= 1
        self._put(await exchange.finished(output, self._num_open))


async def _in_turn(requests: Sequence[Request], stagger_seconds: float, num_staggered: int) -> AsyncIterator[Request]:
    """Requests in order; the first few are held back a little each, so that they do not run in step."""
    for number, request in enumerate(requests):
        if 0 < number < num_staggered and stagger_seconds:
            await asyncio.sleep(stagger_seconds)
        yield request
