"""Real servers through their adapters: what they say is read whole, and agrees from engine to engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lossguard.engines.servers.reply import PROMPT_DIFFERS, STOP_APPENDED
from lossguard.engines.servers.server_engine import ServerEngine
from lossguard.prompts.render import load_tokenizer, stop_ids_of
from lossguard.records import FinishReason, Request, SamplingParams, ServedOutput
from tests.servers.fleet import Fleet, engine_of

pytestmark = pytest.mark.servers
QUESTIONS = (
    "What is the capital of France?",
    "List the first ten primes.",
    "Repeat the word cat twenty times.",
    "Count from one to thirty.",
)
NAMES = ("vllm", "vllm-ngram", "sglang", "sglang-ngram", "llamacpp", "llamacpp-ngram")
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


@pytest.fixture(params=NAMES)
def server(request: pytest.FixtureRequest, fleet: Fleet) -> tuple[str, ServerEngine]:
    """One real server."""
    return request.param, fleet.engine(request.param)


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
    if name == "sglang-ngram":  # its attention on CPUs ignores the tree mask
        return
    first_replies[name] = found
    other_name, other = next(iter(first_replies.items()))
    ids, others = ({key: one.ids for key, one in replies.items()} for replies in (found, other))
    assert ids == others, other_name
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


def test_a_server_known_by_its_text_only(model: str, fleet: Fleet, tmp_path: Path) -> None:
    """One real server, asked by its own interface and by that of OpenAI, which gives text back."""
    requests = requests_for(model)
    server = fleet.engine("llamacpp")
    as_text = engine_of({"engine": "openai", "url": server.start()}, model, tmp_path)
    assert not as_text.capabilities.token_ids_out
    served, read = by_id(server.serve(requests)), by_id(as_text.serve(requests))
    assert {key: one.text for key, one in read.items()} == {key: one.text for key, one in served.items()}
    assert {key: one.ids for key, one in read.items()} == {key: one.ids for key, one in served.items()}
