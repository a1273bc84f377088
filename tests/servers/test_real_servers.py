"""Real servers through their adapters: what they say is read whole, and agrees from engine to engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lossguard.engines.base import EngineSpec
from lossguard.engines.registry import engine_factory
from lossguard.engines.servers.reply import PROMPT_DIFFERS, STOP_APPENDED
from lossguard.engines.servers.server_engine import ServerEngine
from lossguard.prompts.render import load_tokenizer, stop_ids_of
from lossguard.records import FinishReason, Request, SamplingParams, ServedOutput
from tests.servers.conftest import LLAMA_NGRAM, NGRAM, llamacpp, sglang, vllm

pytestmark = pytest.mark.servers
QUESTIONS = (
    "What is the capital of France?",
    "List the first ten primes.",
    "Repeat the word cat twenty times.",
    "Count from one to thirty.",
)
NAMES = ("vllm-ngram", "sglang-ngram", "llamacpp", "llamacpp-ngram")
"""Their speculation goes through all that plain serving does, which the gate's own tests run besides."""
ODD_LOGPROBS = ("sglang-ngram", "llamacpp-ngram")
"""Wrong log-probabilities of verified drafts, or none, as the logprob check finds (test_real_gate.py)."""
MAX_TOKENS = 24
Served = dict[str, ServedOutput]


def requests_for(model: str, **sampling: Any) -> list[Request]:
    """A few chat requests."""
    tokenizer = load_tokenizer(Path(model))
    asked = SamplingParams(max_tokens=MAX_TOKENS, stop_ids=tuple(stop_ids_of(Path(model))), **sampling)
    prompts = [
        tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)
        for text in QUESTIONS
    ]
    return [
        Request(id=f"q{index}", prompt_ids=tuple(ids), sampling=asked, set="chat", cluster=f"c{index}")
        for index, ids in enumerate(prompts)
    ]


def system_of(name: str, gguf: Path) -> dict[str, Any]:
    """A server's options."""
    plain = {"vllm": vllm(), "sglang": sglang(), "llamacpp": llamacpp(gguf)}
    ngram = {"llamacpp": llamacpp(gguf, *LLAMA_NGRAM), **NGRAM}
    kind, _, speculation = name.partition("-")
    return ngram[kind] if speculation else plain[kind]


def engine_of(table: dict[str, Any], model: str, folder: Path) -> ServerEngine:
    """The engine of a system's table."""
    options = {key: value for key, value in table.items() if key != "engine"}
    spec = EngineSpec(name=table["engine"], model_path=model, options=options, folder=folder)
    engine = engine_factory(table["engine"])(spec)
    assert isinstance(engine, ServerEngine)
    return engine


@pytest.fixture(scope="module", params=NAMES)
def server(
    request: pytest.FixtureRequest, model: str, f32_gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, ServerEngine]]:
    """One real server, started once for all tests of this module."""
    folder = tmp_path_factory.mktemp(request.param)
    engine = engine_of(system_of(request.param, f32_gguf), model, folder)
    try:
        yield request.param, engine
    finally:
        engine.close()


@pytest.fixture(scope="session")
def first_replies() -> dict[str, Served]:
    """The replies of every server seen so far, by its name."""
    return {}


def by_id(outputs: Iterator[ServedOutput]) -> Served:
    return {output.request_id: output for output in outputs}


def test_greedy_replies_agree_between_engines(
    server: tuple[str, ServerEngine], model: str, first_replies: dict[str, Served]
) -> None:
    """In float32 all engines and their speculation give the same tokens, and log-probabilities within 1e-3."""
    name, engine = server
    requests = requests_for(model, logprobs=5)
    found = by_id(engine.serve(requests))
    assert len(found) == len(requests)
    for request in requests:
        output = found[request.id]
        assert output.usage is not None
        assert output.usage.prompt_tokens == len(request.prompt_ids)
        appended = int(STOP_APPENDED in output.telemetry)
        assert output.usage.completion_tokens == len(output.ids) - appended
        assert output.telemetry.get(PROMPT_DIFFERS, (0.0,)) == (0.0,)
        assert output.logprobs is not None
        assert len(output.logprobs.served) == len(output.ids) - appended
        is_at_limit = output.finish_reason is FinishReason.LENGTH
        assert is_at_limit == (len(output.ids) == MAX_TOKENS and output.ids[-1] not in request.sampling.stop_ids)
        assert list(output.arrival_ns) == sorted(output.arrival_ns)
    first_replies[name] = found
    other_name, other = next(iter(first_replies.items()))
    ids, others = ({key: one.ids for key, one in replies.items()} for replies in (found, other))
    assert ids == others or name == "sglang-ngram", other_name  # its attention on CPUs ignores the tree mask
    if name not in ODD_LOGPROBS:
        for key, output in found.items():
            assert _largest_difference(output, other[key]) < 1e-3


def _largest_difference(one: ServedOutput, other: ServedOutput) -> float:
    assert one.logprobs is not None
    assert other.logprobs is not None
    shared = min(len(one.logprobs.served), len(other.logprobs.served))
    return float(np.abs(np.subtract(one.logprobs.served[:shared], other.logprobs.served[:shared])).max())


def test_the_path_under_test_fires(server: tuple[str, ServerEngine], model: str) -> None:
    name, engine = server
    outputs = list(engine.serve(requests_for(model)))
    drafted = sum(sum(column) for output in outputs for key, column in output.telemetry.items() if "drafts" in key)
    assert (drafted > 0) == name.endswith("-ngram")


def test_stop_strings_and_limits(server: tuple[str, ServerEngine], model: str) -> None:
    _, engine = server
    (request, *_) = requests_for(model, stop_strings=(" of",))
    (output,) = engine.serve([request])
    assert output.finish_reason is FinishReason.STOP
    assert output.stop_reason == " of"
    assert output.text == "The capital"


def test_a_server_known_by_its_text_only(model: str, f32_gguf: Path, tmp_path: Path) -> None:
    """One real server, asked by its own interface and by that of OpenAI, which gives text back."""
    requests = requests_for(model)
    server = engine_of(llamacpp(f32_gguf), model, tmp_path / "ids")
    try:
        as_text = engine_of({"engine": "openai", "url": server.start()}, model, tmp_path / "text")
        assert not as_text.capabilities.token_ids_out
        served, read = by_id(server.serve(requests)), by_id(as_text.serve(requests))
    finally:
        server.close()
    assert {key: one.text for key, one in read.items()} == {key: one.text for key, one in served.items()}
    assert {key: one.ids for key, one in read.items()} == {key: one.ids for key, one in served.items()}
