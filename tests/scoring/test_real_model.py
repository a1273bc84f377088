"""The built-in model in bf16 on real text: what the FP32 head costs in accuracy, and what sharing changes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lossguard.records import SamplingParams
from lossguard.scoring.torch_scorer import TorchScorerSpec, scorer_from_model
from tests.scoring.tiny_models import Case, make_jobs, reference_row

pytestmark = pytest.mark.slow

TEXTS = (
    "The river rises in the hills above the town and runs south through meadows where cattle graze until autumn.",
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    return total / 2",
    "To bake bread you need flour, water, salt and yeast. Mix them, let the dough rise for an hour, and bake it hot.",
)


def test_bf16_scores_beside_an_fp64_head(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype="auto", local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(smollm2_path, local_files_only=True)
    texts = [tokenizer(text)["input_ids"] for text in TEXTS]
    cases = [
        Case(prompt=ids[:6], replies=[ids[6:], [*ids[6:14], *ids[6:12]]], sampling=SamplingParams(max_tokens=64))
        for ids in texts
    ]
    specs = (
        TorchScorerSpec(model_path=""),
        TorchScorerSpec(model_path="", share_prefixes=False, token_budget=1),  # one reply a pass, as below
    )
    shared, single = (scorer_from_model(model, spec).score(make_jobs(cases)) for spec in specs)
    head_error = path_difference = 0.0
    weight = model.lm_head.weight.detach().double()
    for arm in (0, 1):
        path_difference = max(path_difference, float(np.abs(shared[arm].gap - single[arm].gap).max()))
        for index, case in enumerate(cases):
            reply = case.replies[arm]
            with torch.inference_mode():
                tokens = torch.tensor([[*case.prompt, *reply[:-1]]])
                hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state[0, len(case.prompt) - 1 :]
            logits = (hidden.double() @ weight.T).numpy()
            for position, served in enumerate(reply):
                gap, rank, best, logprob = reference_row(logits[position], served)
                row = int(single[arm].offsets[index]) + position
                head_error = max(head_error, abs(float(single[arm].gap[row]) - gap))
                assert (single[arm].rank[row], single[arm].best_id[row]) == (rank, best)
                assert single[arm].logprob[row] == pytest.approx(logprob, abs=1e-4)
    with capsys.disabled():
        sys.stdout.write(f"\nlargest error of a gap: {head_error:.2g} nats by the FP32 head, ")
        sys.stdout.write(f"{path_difference:.2g} between a tail from a cache and a single pass\n")
    assert head_error < 1e-4  # the served bf16 head rounds by up to 0.06 there
    assert path_difference < 0.5  # another order of the same bf16 sums, the same for every arm
