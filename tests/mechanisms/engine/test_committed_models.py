"""The committed hybrid target with its three trained drafters: the same replies as plain decoding, in fewer steps."""

from __future__ import annotations

from functools import cache
from pathlib import Path

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


def requests(temperature: float, max_tokens: int) -> list[Request]:
    """Prompts of several lengths."""
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    seed = 17 if temperature else None
    return [
        request(f"r{at}", tokenizer.encode(text).ids, max_tokens, temperature=temperature, seed=seed)
        for at, text in enumerate(TEXTS)
    ]


def replies(temperature: float, **options: object) -> dict[str, ServedOutput]:
    """From the committed target in float32."""
    given = {"device": "cpu", "dtype": "float32", "threads": 1, "slots": 4, "cache_tokens": 4096, **options}
    engine = EmbeddedEngine(EngineSpec(name="committed", model_path=str(TARGET), options=given))
    outputs = {output.request_id: output for output in engine.serve(requests(temperature, 40))}
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
        ("dflash2", "best-first", 0.7),
        pytest.param("dflash2", "best-first", 0.0, marks=pytest.mark.slow),
        pytest.param("dspark", "eagle-2", 0.7, marks=pytest.mark.slow),
        pytest.param("eagle3", "ddtree", 0.0, marks=pytest.mark.slow),
        pytest.param("eagle3", "static", 0.7, marks=pytest.mark.slow),
    ],
)
def test_trees_serve_the_same_in_fewer_steps(drafter: str, policy: str, temperature: float) -> None:
    torch.set_num_threads(1)
    served = replies(temperature, drafter=str(FIXTURES / f"hybrid-{drafter}"), policy=policy, nodes=16)
    require_same_in_fewer_steps(temperature, served, 1.5)


def require_same_in_fewer_steps(temperature: float, served: dict[str, ServedOutput], least: float) -> None:
    """Plain decoding's replies, with at least so many tokens per step."""
    expected = plain(temperature)
    assert {name: output.ids for name, output in served.items()} == {
        name: output.ids for name, output in expected.items()
    }
    num_tokens = sum(len(output.ids) - 1 for output in served.values())
    num_steps = sum(output.telemetry["steps"][0] for output in served.values())
    assert num_tokens / num_steps > least
