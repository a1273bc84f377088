"""A real HTTP server that scores as SGLang and vLLM do, over the toy target, with faults planted on demand.

In a test: ``with ScoringLoopback("vllm") as server: server.url``. As a process of its own, for launching:
``python -m tests.scoring.servers.scoring_loopback vllm PORT [SECONDS]``.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tests.gate.toy import ToyTarget

Reply = dict[str, Any]
Fault = Callable[[Reply], Reply]
"""Changes a reply before it is written."""


class ScoringLoopback:
    """One server in a thread of this process."""

    def __init__(self, kind: str, *, noise_nats: float = 0.0, fault: Fault | None = None) -> None:
        self.kind = kind
        self.target = ToyTarget()
        self.noise_nats = noise_nats
        self.fault = fault
        self.delay = 0.0
        self.is_down = False  # answers 503 to everything that it should score
        self.info: dict[str, Any] = {"version": "1.0", "dtype": "bfloat16", "enable_fp32_lm_head": True}
        self.bodies: list[Mapping[str, Any]] = []
        self.most_at_once = 0
        self._at_once = 0
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
        path = "/generate" if self.kind == "sglang" else "/v1/completions"
        return Starlette(
            routes=[
                Route(path, self._reply, methods=["POST"]),
                Route("/health", lambda _request: PlainTextResponse("ok")),
                Route("/v1/models", lambda _request: JSONResponse({"data": [{"id": "toy", "root": "toy"}]})),
                Route("/version", lambda _request: JSONResponse({"version": "1.0"})),
                Route("/server_info", lambda _request: JSONResponse(self.info)),
            ]
        )

    async def _reply(self, request: HttpRequest) -> Response:
        body = json.loads(await request.body())
        self.bodies.append(body)
        if self.is_down:
            return PlainTextResponse("no", status_code=503)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(self.delay)
            reply = self._sglang(body) if self.kind == "sglang" else self._vllm(body)
        finally:
            self._at_once -= 1
        return Response(json.dumps(reply if self.fault is None else self.fault(reply)), media_type="application/json")

    def logprobs(self, ids: list[int]) -> np.ndarray:
        """[V] after ``ids``."""
        rng = np.random.default_rng(abs(hash((tuple(ids[-4:]), len(ids)))) % 2**32)
        logits = self.target.logits(ids) + rng.normal(size=len(self.target.logits(ids))) * self.noise_nats
        return np.asarray(logits - np.logaddexp.reduce(logits))

    def _sglang(self, body: Mapping[str, Any]) -> Reply:
        ids, start, top = body["input_ids"], body["logprob_start_len"], body["top_logprobs_num"]
        own: list[Any] = [[None, ids[start], None]]
        tops: list[Any] = [None]
        for place in range(start + 1, len(ids)):
            values = self.logprobs(ids[:place])
            own.append([float(values[ids[place]]), ids[place], None])
            tops.append([[float(values[item]), int(item), None] for item in np.argsort(-values, kind="stable")[:top]])
        meta = {"prompt_tokens": len(ids), "input_token_logprobs": own, "input_top_logprobs": tops}
        return {"text": "", "output_ids": [1], "meta_info": meta}

    def _vllm(self, body: Mapping[str, Any]) -> Reply:
        ids, top = body["prompt"], body["prompt_logprobs"]
        rows: list[Any] = [None]
        for place in range(1, len(ids)):
            values = self.logprobs(ids[:place])
            order = [int(item) for item in np.argsort(-values, kind="stable")]
            shown = dict.fromkeys([ids[place], *order[:top]])
            rows.append(
                {
                    str(item): {"logprob": float(values[item]), "rank": order.index(item) + 1, "decoded_token": "x"}
                    for item in shown
                }
            )
        choice = {"index": 0, "text": "", "prompt_token_ids": ids, "prompt_logprobs": rows, "finish_reason": "length"}
        return {"choices": [choice], "usage": {"prompt_tokens": len(ids), "completion_tokens": 1}}


def main(arguments: list[str]) -> None:
    """Serve until killed."""
    kind, port, *_ = arguments
    uvicorn.run(ScoringLoopback(kind).app(), host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1:])
