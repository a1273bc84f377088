"""A real HTTP server over the toy model that speaks each server's dialect, with faults planted on demand.

In a test: ``with Loopback("vllm", ToyModel()) as server: server.url``. As a process of its own, for launching and
killing: ``python -m tests.engines.servers.loopback vllm PORT [FAULT ...]``.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.engines.servers.dialect_writers import WRITERS
from tests.engines.servers.spoken import REPLY_FAULTS, ToyModel


class Loopback:
    """One server in a thread of this process."""

    def __init__(
        self, dialect: str, model: ToyModel | None = None, *, block: int = 3, version: str = "1.0", delay: float = 0.0
    ) -> None:
        self.model = model or ToyModel()
        self.block = block
        self.version = version
        self.delay = delay  # seconds before each reply
        self.bodies: list[dict[str, Any]] = []
        self.models = ["toy"]
        self.headers: dict[str, str] = {}  # of the last request
        self.statuses: list[tuple[int, str]] = []  # answered before anything honest, one a request
        self.dies_after: int | None = None
        self.scripted: Callable[[dict[str, Any]], bytes | None] = lambda _body: None  # sent in place of a reply
        self.most_at_once = 0
        self._at_once = 0
        self._totals = {"drafts": 0, "accepted": 0, "preempted": 0, "cached": 0}
        self._writer = WRITERS[dialect]()
        self._dialect = dialect
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        config = uvicorn.Config(self.app(), log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()

    def app(self) -> Starlette:
        """The application with all its routes."""
        return Starlette(
            routes=[
                Route(self._writer.path, self._reply, methods=["POST"]),
                Route("/health", lambda _request: PlainTextResponse("ok")),
                Route("/v1/models", lambda _request: JSONResponse(self._models())),
                Route("/version", lambda _request: JSONResponse({"version": self.version})),
                Route("/server_info", lambda _request: JSONResponse({"version": self.version, "dtype": "bfloat16"})),
                Route("/props", lambda _request: JSONResponse({"build_info": self.version})),
                Route("/metrics", lambda _request: PlainTextResponse(self._metrics())),
            ]
        )

    async def _reply(self, request: HttpRequest) -> Response:
        body = json.loads(await request.body())
        self.bodies.append(body)
        self.headers = dict(request.headers)
        if self.statuses:
            status, text = self.statuses.pop(0)
            return PlainTextResponse(text, status_code=status)
        if (script := self.scripted(body)) is not None:
            return Response(script, media_type="text/event-stream")
        if self.dies_after is not None and len(self.bodies) > self.dies_after:
            return PlainTextResponse("out of memory", status_code=500)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(self.delay)
            asked = self._writer.asked(body)
            spoken = self.model.speak(asked)
            for name in self._totals:
                self._totals[name] += getattr(spoken, name)
        finally:
            self._at_once -= 1
        if not asked.stream:
            return Response(json.dumps(self._writer.whole(spoken, asked)), media_type="application/json")
        return StreamingResponse(
            _slowly(self._writer.stream(spoken, asked, self.block)), media_type="text/event-stream"
        )

    def _models(self) -> dict[str, Any]:
        return {"data": [{"id": name, "root": name, "permission": [{"id": id(self)}]} for name in self.models]}

    def _metrics(self) -> str:
        names = {
            "drafts": "vllm:spec_decode_num_draft_tokens_total",
            "accepted": "vllm:spec_decode_num_accepted_tokens_total",
            "preempted": "vllm:num_preemptions_total",
            "cached": "vllm:prefix_cache_hits_total",
        }
        return "".join(f'{name}{{engine="0"}} {float(self._totals[key])}\n' for key, name in names.items())


async def _slowly(events: Iterator[str]) -> AsyncIterator[str]:
    for item in events:
        yield item
        await asyncio.sleep(0)


def main(arguments: list[str]) -> None:
    """Serve until killed."""
    dialect, port, *faults = arguments
    delay = next((float(name.partition("=")[2]) for name in faults if name.startswith("delay=")), 0.0)
    named = tuple(REPLY_FAULTS[name] for name in faults if "=" not in name)
    server = Loopback(dialect, ToyModel(reply_faults=named, salt=int(dialect == "vllm")), delay=delay)
    sys.stdout.write(f"serving {dialect} on {port}\n")
    sys.stdout.flush()
    uvicorn.run(server.app(), host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1:])
