"""HTTP to one server: every phase timed, every size bounded, nothing asked twice."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from lossguard.engines.servers import problems
from lossguard.engines.servers.dialect import Dialect, Question
from lossguard.engines.servers.event_stream import EventStream, OversizedError
from lossguard.engines.servers.json_view import JsonView, parse_json
from lossguard.engines.servers.options import Timeouts
from lossguard.engines.servers.problems import EXCERPT_BYTES, MalformedReplyError
from lossguard.records import Request, ServedOutput

BODY_BYTES = 256 * 2**20
STREAM_BYTES = 4 * 2**30  # never held: a stream that repeats all tokens in every event grows with their square
ERROR_BYTES = 64 * 2**10
DONE = b"[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server is, and how errors call it."""

    system: str
    url: str
    log: Path | None = None
    api_key: str | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)


class Transport:
    """An asynchronous client of one server. Errors are EngineError LG0220 to LG0224."""

    def __init__(self, address: Address, *, concurrency: int) -> None:
        limits = address.timeouts
        # A kept connection may be closed by the server while the next request is on its way, and none is sent twice:
        # every request has a connection of its own.
        headers = {"accept-encoding": "identity", "connection": "close"}
        if address.api_key is not None:
            headers["authorization"] = f"Bearer {address.api_key}"
        self._address = address
        self._client = httpx.AsyncClient(
            base_url=address.url,
            headers=headers,
            timeout=httpx.Timeout(limits.read, connect=limits.connect, pool=None),
            limits=httpx.Limits(max_connections=concurrency + 2, max_keepalive_connections=0),
            follow_redirects=False,
            trust_env=not is_loopback(address.url),  # a proxy of the environment is never between us and this machine
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def ask(self, dialect: Dialect, request: Request, question: Question, *, stream: bool) -> ServedOutput:
        """Send one request and read its whole reply."""
        reader = dialect.reader(request, stream=stream)
        sent_ns = time.monotonic_ns()
        last = b""
        try:
            async with self._open("POST", question.path, question.body) as response:
                if stream:
                    async for message in self._events(response, needs_done=dialect.facts.ends_with_done):
                        last = message
                        reader.feed(parse_json(message), time.monotonic_ns())
                else:
                    last = await _whole_body(response)
                    reader.feed(parse_json(last), time.monotonic_ns())
            return reader.output(sent_ns)
        except MalformedReplyError as error:
            found = f"request {request.id!r}: {error}"
            raise problems.malformed(self._address.system, self._at(question.path), found, last) from error

    async def get_json(self, path: str) -> JsonView:
        """A JSON document about the server."""
        body = await self.get(path)
        try:
            return parse_json(body)
        except MalformedReplyError as error:
            raise problems.malformed(self._address.system, self._at(path), str(error), body) from error

    async def post_json(self, question: Question) -> JsonView:
        """The JSON document that answers a question which is no request for a reply."""
        async with self._open("POST", question.path, question.body) as response:
            body = await _whole_body(response)
        try:
            return parse_json(body)
        except MalformedReplyError as error:
            raise problems.malformed(self._address.system, self._at(question.path), str(error), body) from error

    async def get(self, path: str) -> bytes:
        """A document of the server."""
        async with self._open("GET", path, None) as response:
            return await _whole_body(response)

    @asynccontextmanager
    async def _open(self, method: str, path: str, body: Mapping[str, Any] | None) -> AsyncIterator[httpx.Response]:
        """One exchange within its time, with everything that transport can do to it turned into an EngineError."""
        system, at, limits = self._address.system, self._at(path), self._address.timeouts
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            async with (
                asyncio.timeout(limits.request),
                self._client.stream(method, path, content=content, headers=headers) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    raise problems.bad_status(system, at, response.status_code, await _error_body(response))
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise MalformedReplyError("it is compressed, although identity was asked for")
                yield response
        except httpx.TimeoutException as error:
            raise problems.too_slow(system, at, _phase(error, limits)) from error
        except TimeoutError as error:
            raise problems.too_slow(system, at, f"{limits.request:g} s for one request (request_seconds)") from error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            detail = f"{type(error).__name__}: {error}"
            raise problems.unreachable(system, at, detail, self._address.log) from error
        except OversizedError as error:
            raise problems.too_large(system, at, error.what, error.limit) from error

    async def _events(self, response: httpx.Response, *, needs_done: bool) -> AsyncIterator[bytes]:
        events, num_bytes, is_done = EventStream(), 0, False
        async for chunk in response.aiter_bytes():
            num_bytes += len(chunk)
            if num_bytes > STREAM_BYTES:
                raise OversizedError(f"a stream of {num_bytes:,} bytes", STREAM_BYTES)
            for data in events.feed(chunk):
                if is_done:
                    raise MalformedReplyError(f"an event after [DONE]: {problems.excerpt(data)}")
                if data == DONE:
                    is_done = True
                else:
                    yield data
        if not events.is_between_events:
            raise MalformedReplyError("the stream broke off within an event")
        if needs_done and not is_done:
            raise MalformedReplyError("the stream ended without [DONE]")

    def _at(self, path: str) -> str:
        return self._address.url + path


async def _whole_body(response: httpx.Response) -> bytes:
    parts, num_bytes = [], 0
    async for chunk in response.aiter_bytes():
        num_bytes += len(chunk)
        if num_bytes > BODY_BYTES:
            raise OversizedError(f"a body of {num_bytes:,} bytes", BODY_BYTES)
        parts.append(chunk)
    return b"".join(parts)


async def _error_body(response: httpx.Response) -> bytes:
    """The beginning of an error page, which may be endless."""
    body = b""
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > max(ERROR_BYTES, EXCERPT_BYTES):
            break
    return body


def _phase(error: httpx.TimeoutException, limits: Timeouts) -> str:
    if isinstance(error, httpx.ConnectTimeout):
        return f"{limits.connect:g} s to connect (connect_seconds)"
    return f"{limits.read:g} s without a byte (read_seconds)"


def is_loopback(url: str) -> bool:
    """Whether a URL names this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
