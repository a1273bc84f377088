"""Sampled replies of the committed hybrid: chain speculation draws from the target's distribution, as decoding does.

Both arms draw with different seeds (with one seed they serve the same tokens), and transformers' own model scores them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from lossguard.checks.base import Arm
from lossguard.checks.sampling import SamplingCheck
from lossguard.engines.base import EngineSpec
from lossguard.records import CheckResult, Request, ServedOutput, Verdict
from lossguard.scoring.base import ScoringJob
from lossguard.scoring.torch_scorer import TorchScorerSpec, create_torch_scorer
from lossguard_mechanisms.engine.adapter import EmbeddedEngine
from tests.checks.simulated_arms import check_input, thresholds
from tests.mechanisms.engine.doubles import request

FIXTURES = Path(__file__).parents[3] / "fixtures"
TARGET = FIXTURES / "hybrid-target"
TEMPERATURE = 0.7
TEXTS = ("def {}(a, b):\n", "To create the {}, use", "import {}\n\n\n", "class {}:\n", "The {} is", "for {} in range(")
NAMES = tuple(
    f"{first}_{last}" for first in ("table", "index", "row", "page", "key", "node", "size") for last in "abcde"
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (TARGET / "model.safetensors").is_file(), reason="no committed hybrid target"),
]


@cache
def requests() -> tuple[Request, ...]:
    """210 prompts."""
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    texts = [text.format(name) for text in TEXTS for name in NAMES]
    return tuple(
        request(f"r{at:03d}", tokenizer.encode(text).ids, 32, temperature=TEMPERATURE, seed=17)
        for at, text in enumerate(texts)
    )


def served(seed: int, *, temperature: float = TEMPERATURE, **options: object) -> list[ServedOutput]:
    """Replies in the order of the requests, drawn with another seed, or at another temperature than asked for."""
    asked = [replace(item, sampling=replace(item.sampling, seed=seed, temperature=temperature)) for item in requests()]
    given = {"device": "cpu", "dtype": "float32", "threads": 1, "slots": 32, **options}
    engine = EmbeddedEngine(EngineSpec(name="committed", model_path=str(TARGET), options=given))
    outputs = {output.request_id: output for output in engine.serve(asked)}
    engine.close()
    return [outputs[item.id] for item in asked]


def judged(stock: list[ServedOutput], candidate: list[ServedOutput]) -> CheckResult:
    """By transformers' own model in float32."""
    scorer = create_torch_scorer(TorchScorerSpec(model_path=str(TARGET), device="cpu", dtype="float32", threads=1))
    jobs = [
        ScoringJob(request=item, outputs=pair)
        for item, pair in zip(requests(), zip(stock, candidate, strict=True), strict=True)
    ]
    scores = scorer.score(jobs)
    arms = [
        Arm(name=name, outputs=outputs, scores=found)
        for name, outputs, found in zip(("stock", "candidate"), (stock, candidate), scores, strict=True)
    ]
    return SamplingCheck().run(check_input(requests(), arms[1], arms[0], thresholds()))


def test_chains_pass_and_another_temperature_fails() -> None:
    torch.set_num_threads(1)
    stock = served(1)
    chains = judged(stock, served(2, drafter=str(FIXTURES / "hybrid-dflash2")))
    assert chains.verdict is Verdict.PASS, chains.summary
    cold = judged(stock, served(3, temperature=0.9 * TEMPERATURE))
    assert cold.verdict is Verdict.FAIL, cold.summary
    assert "too cold" in cold.summary
