"""Grammars from the request to the verdict: masked replies pass, a bonus token without its mask fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.parameters import ParametersCheck
from lossguard.records import CheckResult, SamplingParams, Verdict
from lossguard.scoring.base import ScoringJob
from lossguard.scoring.grammar_masks import load_grammar_masks
from lossguard.scoring.spec import TorchScorerSpec
from lossguard.scoring.torch_scorer import scorer_from_model
from tests.checks.simulated_arms import thresholds
from tests.scoring.byte_tokenizer import END, write_tokenizer
from tests.scoring.tiny_models import VOCAB_SIZE, Case, make_jobs, random_ids, tiny_llama

SCHEMA = 'json:{"type":"array","items":{"type":"integer"},"minItems":3}'
LENGTH = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bytes")
    write_tokenizer(made)
    return made


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_llama()


def served(llama: Any, folder: Path, prompt: Sequence[int], *, skips: int = 0) -> list[int]:
    """Greedy decoding under the grammar; the mask is left out at every so many steps, as of a stale bitmask."""
    masks = load_grammar_masks(str(folder), VOCAB_SIZE)
    assert masks is not None
    walk, reply = masks.walk(SCHEMA, (END,)), list[int]()
    while len(reply) < LENGTH and (not reply or reply[-1] != END):
        with torch.no_grad():
            logits = llama(input_ids=torch.tensor([[*prompt, *reply]])).logits[0, -1].numpy()
        allowed = walk.allowed(reply)
        if allowed is not None and not (skips and len(reply) % skips == skips - 1):
            logits = np.where(allowed, logits, -np.inf)
        reply.append(int(np.argmax(logits)))
    return reply


def verdict(llama: Any, model_path: str, replies: Sequence[tuple[list[int], list[int], list[int]]]) -> CheckResult:
    """(prompt, candidate, stock) of each request, scored and judged."""
    sampling = SamplingParams(max_tokens=LENGTH, stop_ids=(END,), grammar=SCHEMA)
    cases = [Case(prompt=prompt, replies=[ours, theirs], sampling=sampling) for prompt, ours, theirs in replies]
    jobs: list[ScoringJob] = make_jobs(cases)
    scores = scorer_from_model(llama, TorchScorerSpec(model_path=model_path)).score(jobs)
    candidate, stock = (
        Arm(name=name, outputs=[job.outputs[arm] for job in jobs], scores=scores[arm])
        for arm, name in enumerate(("candidate", "stock"))
    )
    requests = [job.request for job in jobs]
    return ParametersCheck().run(
        CheckInput(
            requests=requests,
            stock=stock,
            candidate=candidate,
            thresholds=thresholds(),
            calibration_requests=requests,
            calibration=stock,
            expect={},
            vocab_size=VOCAB_SIZE,
            seed=1,
        )
    )


def test_a_grammar_is_checked_and_not_excused(llama: Any, folder: Path) -> None:
    generator = np.random.default_rng(3)
    prompts = [random_ids(generator, 8) for _ in range(4)]
    honest = [(prompt, served(llama, folder, prompt), served(llama, folder, prompt)) for prompt in prompts]
    result = verdict(llama, str(folder), honest)
    assert (result.verdict, result.summary) == (Verdict.PASS, "grammar at every token")
    stale = [(prompt, served(llama, folder, prompt, skips=4), stock) for prompt, _, stock in honest]
    result = verdict(llama, str(folder), stale)
    assert result.verdict is Verdict.FAIL
    assert "cannot be served under grammar" in result.notes[0]
    assert "position 3" in result.notes[0]


def test_without_masks_there_is_no_pass(llama: Any, folder: Path) -> None:
    reply = served(llama, folder, [5, 6, 7])
    result = verdict(llama, "no such folder", [([5, 6, 7], reply, reply)])
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "pip install 'lossguard[grammar]'" in result.summary
