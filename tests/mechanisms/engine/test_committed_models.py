"""The committed hybrid target with its three trained drafters: the same replies as plain decoding, in fewer steps."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from lossguard.engines.base import EngineSpec
from lossguard.records import Request, ServedOutput
from lossguard_mechanisms.engine.adapter import EmbeddedEngine
from tests.mechanisms.engine.doubles import request

FIXTURES = Path(__file__).parents[3] / "fixtures"
TARGET = FIXTURES / "hybrid-target"
TEXTS = (
    "def add(a, b):\n",
    "The following example shows how to",
    "import os\nimport sys\n\n\ndef main():\n",
    "class Foo:\n    def __init__(self, name):\n",
    "To create an index on a table, use",
    "for i in range(10):\n    print(",
)

pytestmark = pytest.mark.skipif(not (TARGET / "model.safetensors").is_file(), reason="no committed hybrid target")


def requests(temperature: float, max_tokens: int, num_logprobs: int) -> list[Request]:
    """Prompts of several lengths."""
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    asked: dict[str, Any] = {"temperature": temperature, "seed": 17 if temperature else None, "logprobs": num_logprobs}
    return [request(f"r{at}", tokenizer.encode(text).ids, max_tokens, **asked) for at, text in enumerate(TEXTS)]


def replies(temperature: float, *, num_logprobs: int = 0, **options: object) -> dict[str, ServedOutput]:
    """From the committed target in float32."""
    given = {"device": "cpu", "dtype": "float32", "threads": 1, "slots": 4, "cache_tokens": 4096, **options}
    engine = EmbeddedEngine(EngineSpec(name="committed", model_path=str(TARGET), options=given))
    outputs = {output.request_id: output for output in engine.serve(requests(temperature, 40, num_logprobs))}
    engine.close()
    return outputs


@cache
def plain(temperature: float) -> dict[str, ServedOutput]:
    """Without drafts."""
    return replies(temperature)


@pytest.mark.parametrize("drafter", ["dflash2", "dspark", "eagle3"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_speculation_serves_the_same_in_fewer_steps(drafter: str, temperature: float) -> None:
    torch.set_num_threads(1)
    require_same_in_fewer_steps(temperature, replies(temperature, drafter=str(FIXTURES / f"hybrid-{drafter}")), 1.3)


@pytest.mark.parametrize(
    ("drafter", "policy", "temperature"),
    [
        ("dflash2", "best-first", 0.0),
        ("dflash2", "best-first", 0.7),
        ("dspark", "eagle-2", 0.7),
        ("eagle3", "ddtree", 0.0),
        ("eagle3", "static", 0.7),
    ],
)
def test_trees_serve_the_same_in_fewer_steps(drafter: str, policy: str, temperature: float) -> None:
    torch.set_num_threads(1)
    served = replies(temperature, drafter=str(FIXTURES / f"hybrid-{drafter}"), policy=policy, nodes=16)
    require_same_in_fewer_steps(temperature, served, 1.5)


def test_a_drafter_alone_is_its_chain_bit_for_bit() -> None:
    """In bfloat16: tokens, steps and log-probabilities to the last bit."""
    torch.set_num_threads(1)
    given = {"dtype": "bfloat16", "drafter": str(FIXTURES / "hybrid-dflash2")}
    default, chain, longer = (
        replies(0.0, num_logprobs=3, **given, **options)
        for options in ({}, {"policy": "chain"}, {"policy": "chain", "num_drafts": 7})
    )
    for name, output in default.items():
        for other in (chain[name], longer[name]):
            assert (other.ids, other.logprobs, other.telemetry) == (output.ids, output.logprobs, output.telemetry)


def require_same_in_fewer_steps(temperature: float, served: dict[str, ServedOutput], least: float) -> None:
    """Plain decoding's replies, with at least so many tokens per step."""
    expected = plain(temperature)
    assert {name: output.ids for name, output in served.items()} == {
        name: output.ids for name, output in expected.items()
    }
    num_tokens = sum(len(output.ids) - 1 for output in served.values())
    num_steps = sum(output.telemetry["steps"][0] for output in served.values())
    assert num_tokens / num_steps > least
