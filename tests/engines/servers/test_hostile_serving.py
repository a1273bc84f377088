"""Hostile replies over HTTP, in the middle of a run: every finished reply is kept, and none of it passes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lossguard.config import SystemConfig
from lossguard.engines.servers.server_engine import ServerEngine
from lossguard.errors import EngineError
from lossguard.gate import run_gate
from lossguard.plan import Plan
from lossguard.records import Request, Verdict
from lossguard.run_folder import read_outputs
from lossguard.stages.validation import validated
from tests.engines.servers.conftest import BUDGET, Bench, make_engine, make_requests
from tests.engines.servers.dialect_writers import DONE, event
from tests.engines.servers.loopback import Loopback
from tests.engines.servers.spoken import ToyModel
from tests.engines.servers.test_fuzz import hostile

KINDS = ("sglang", "vllm", "llamacpp")
FEW, MANY = 12, 400
VICTIM = 2
LIMITS: dict[str, Any] = {"connect_seconds": 5.0, "read_seconds": 5.0, "request_seconds": 10.0}


@st.composite
def bodies(draw: st.DrawFn, kind: str) -> bytes:
    """A stream of hostile events, perhaps cut or with bytes of no encoding in it."""
    raw = "".join(event(message) for message in draw(hostile(kind))).encode("utf-8", "backslashreplace")
    raw += DONE.encode() if draw(st.booleans()) else b""
    match draw(st.sampled_from(("whole", "cut", "bytes", "doubled"))):
        case "cut":
            return raw[: draw(st.integers(0, len(raw)))]
        case "bytes":
            at = draw(st.integers(0, len(raw)))
            return raw[:at] + draw(st.binary(max_size=20)) + raw[at:]
        case "doubled":
            return raw + raw
    return raw


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, Loopback]]:
    with Loopback(request.param) as running:
        yield request.param, running


def prompt_of(body: dict[str, Any]) -> list[int]:
    prompt: list[int] = body.get("prompt") or body["input_ids"]
    return prompt


def served(engine: ServerEngine, requests: Sequence[Request]) -> tuple[list[str], str | None]:
    """(requests whose replies were kept, the code of the error that ended it)"""
    kept: list[str] = []
    try:
        for output in engine.serve(requests):
            kept.append(validated(output).request_id)
    except EngineError as error:
        return kept, error.code
    return kept, None


@pytest.mark.parametrize("number", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_what_came_before_a_hostile_reply_is_kept(server: tuple[str, Loopback], toy_model: str, number: int) -> None:
    kind, running = server
    requests = make_requests(5)

    def check(raw: bytes) -> None:
        running.scripted = lambda body: raw if prompt_of(body) == list(requests[VICTIM].prompt_ids) else None
        engine = make_engine(kind, toy_model, url=running.url, concurrency=1, **LIMITS)
        started = time.monotonic()
        kept, code = served(engine, requests)
        assert time.monotonic() - started < 30
        assert code in {None, "LG0220", "LG0221", "LG0223", "LG0224"}
        assert kept == (["r0", "r1"] if code else [request.id for request in requests])

    quiet = [HealthCheck.too_slow]
    settings(max_examples=number, deadline=None, suppress_health_check=quiet)(given(bodies(kind))(check))()


@pytest.mark.parametrize(
    "script",
    [
        b'data: {"choices": [{"text": "',
        b'data: {"choices": [{"text": NaN, "token_ids": [NaN]}]}\n\n',
        b"",
    ],
)
def test_a_run_with_a_hostile_reply_has_no_verdict_until_it_is_resumed(bench: Bench, script: bytes) -> None:
    with Loopback("vllm") as stock, Loopback("vllm", ToyModel(salt=1)) as candidate:
        served = iter(range(10_000))
        candidate.scripted = lambda _body: script if next(served) == 100 else None
        options = {"logit_dtype": "bfloat16", "concurrency": 1}
        systems = {
            name: SystemConfig(name=name, engine="vllm", options={"url": running.url, **options})
            for name, running in (("stock", stock), ("candidate", candidate))
        }
        config = replace(bench.stack.config, systems=systems)
        plan = Plan(config, candidates=["candidate"], budget=BUDGET, folder=bench.stack.folder / "runs")
        with pytest.raises(EngineError, match="LG0223"):
            run_gate(plan)
        folder = bench.stack.folder / "runs" / "run-0001"
        assert not (folder / "report.json").exists()
        outputs, _notes = read_outputs(folder / "candidate" / "outputs.jsonl")
        assert len(outputs) == 100
        result = run_gate(replace(plan, resume=folder))
    assert result.verdict is Verdict.PASS
    assert len({json.dumps(body["prompt"]) for body in candidate.bodies}) == 210, "only the rest was asked for again"
    assert len(candidate.bodies) == 211
    again, _notes = read_outputs(Path(folder) / "candidate" / "outputs.jsonl")
    assert all(again[name] == output for name, output in outputs.items())
