"""What real servers found in the adapters, told again without them."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import socketserver
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from lossguard.engines.servers.concurrent_serving import Exchange, Traffic, serve_concurrently
from lossguard.engines.servers.json_view import JsonView
from lossguard.engines.servers.llamacpp_dialect import LlamacppDialect
from lossguard.engines.servers.transport import Address, Transport
from lossguard.errors import EngineError
from lossguard.records import Request, SamplingParams, ServedOutput


def request_with(sampling: SamplingParams, number: int = 0) -> Request:
    return Request(id=f"r{number}", prompt_ids=(1, 2, 3), sampling=sampling, set="chat", cluster=f"c{number}")


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (SamplingParams(max_tokens=8), 0),
        (SamplingParams(max_tokens=8, repetition_penalty=1.1), 11),
        (SamplingParams(max_tokens=8, presence_penalty=0.5), 11),
        (SamplingParams(max_tokens=8, frequency_penalty=-0.5), 11),
    ],
)
def test_llamacpp_looks_back_over_prompt_and_reply(sampling: SamplingParams, expected: int) -> None:
    """It refuses the -1 that once meant all of them (b11434: HTTP 400)."""
    body = LlamacppDialect().question(request_with(sampling), None, stream=False).body
    assert body["repeat_last_n"] == expected
    assert ("penalties" in body["samplers"]) is (expected > 0)


def test_llamacpp_log_probabilities_stay_with_their_tokens() -> None:
    """It has no row for a token that ends within a character: there is a gap there, and nothing moves into it."""

    def row(token: int, value: float) -> dict[str, object]:
        return {"id": token, "logprob": value, "top_logprobs": [{"id": token, "logprob": value}]}

    asked = request_with(SamplingParams(max_tokens=3, logprobs=1))
    reader = LlamacppDialect().reader(asked, stream=False)
    whole = {
        **{"tokens": [162, 112, 30], "content": "x.", "stop": True, "stop_type": "limit"},
        **{"completion_probabilities": [row(112, -0.5), row(30, -0.25)], "tokens_evaluated": 3, "tokens_predicted": 3},
    }
    reader.feed(JsonView(whole), 1)
    found = reader.output(0).logprobs
    assert found is not None
    assert math.isnan(found.served[0])
    assert found.served[1:] == (-0.5, -0.25)
    assert found.top_ids == ((), (112,), (30,))


def test_nothing_is_left_pending_after_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """A refused request leaves others unsent; their iterator must be closed before its loop is."""

    async def refuse(request: Request) -> ServedOutput:
        raise EngineError(f"{request.id} is refused", why="a test", fix="none", code="LG0222")

    async def as_it_is(output: ServedOutput, _num_open: int) -> ServedOutput:
        return output

    @asynccontextmanager
    async def exchange() -> AsyncIterator[Exchange]:
        yield Exchange(ask=refuse, finished=as_it_is)

    requests = [request_with(SamplingParams(max_tokens=8), number) for number in range(20)]
    with caplog.at_level(logging.ERROR, logger="asyncio"):
        with pytest.raises(EngineError, match="is refused"):
            list(serve_concurrently(exchange, requests, Traffic(concurrency=4)))
        gc.collect()
    assert caplog.records == []


class _OnceAConnection(socketserver.StreamRequestHandler):
    """Promises to keep the connection, and closes it as soon as a second request comes on it."""

    def handle(self) -> None:
        for answer in (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", b""):
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer)


@contextmanager
def hasty_server() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _OnceAConnection) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_no_request_is_sent_on_a_connection_that_the_server_may_be_closing() -> None:
    """llama-server ends connections 5 s after a reply, without a word: the request that meets it is lost."""

    async def ask(url: str) -> list[bytes]:
        transport = Transport(Address(system="hasty", url=url), concurrency=1)
        try:
            return [await transport.get("/health") for _ in range(3)]
        finally:
            await transport.close()

    with hasty_server() as url:
        assert asyncio.run(ask(url)) == [b"ok"] * 3
