"""A real model: every weight survives, the size is as promised, and it serves the same tokens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lossguard_mechanisms.weights.w12 import loader
from lossguard_mechanisms.weights.w12.convert import convert
from lossguard_mechanisms.weights.w12.info import model_info
from lossguard_mechanisms.weights.w12.linear import W12Linear
from lossguard_mechanisms.weights.w12.verify import verify

pytestmark = pytest.mark.slow

PROMPTS = ([1, 9906, 11, 1917], [1, 504, 8253, 282, 4649, 314])
NUM_NEW_TOKENS = 8


@pytest.fixture(scope="module")
def converted(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converted model."""
    folder = tmp_path_factory.mktemp("w12") / "smollm2"
    convert(smollm2_path, folder)
    return folder


@pytest.fixture(scope="module")
def served_by_stock(smollm2_path: Path) -> list[list[int]]:
    """Greedy replies of the model as it is."""
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.bfloat16)
    return [greedy(model, prompt) for prompt in PROMPTS]


def greedy(model: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": NUM_NEW_TOKENS, "min_new_tokens": NUM_NEW_TOKENS, "do_sample": False}
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    reply: list[int] = out[0, len(prompt) :].tolist()
    return reply


def test_every_weight_survives(converted: Path, smollm2_path: Path) -> None:
    report = verify(converted, smollm2_path)
    assert report.is_equal, report.differences
    assert report.num_weights > 134_000_000


def test_the_size_is_as_promised(converted: Path) -> None:
    info = model_info(converted)
    assert {tensor.reason for tensor in info.tensors if not tensor.is_w12} == {"raw: it has fewer than two dimensions"}
    assert 12.0 < info.bits_per_w12_weight < 12.02
    assert info.escape_fraction < 3.5e-4


def test_memory_stays_under_two_shards(smollm2_path: Path, tmp_path: Path) -> None:
    """Peak memory of a process of its own, beyond what its imports take."""
    program = (
        "import resource, sys; from pathlib import Path; from lossguard_mechanisms.weights.w12.convert import convert\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "before = peak(); convert(Path(sys.argv[1]), Path(sys.argv[2])); print(peak() - before)"
    )
    command = [sys.executable, "-c", program, str(smollm2_path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2 * (smollm2_path / "model.safetensors").stat().st_size


def test_replies_are_token_identical(converted: Path, served_by_stock: list[list[int]]) -> None:
    model = loader.load_model(converted)
    layers = [module for module in model.modules() if isinstance(module, W12Linear)]
    assert len(layers) == 30 * 7 + 1, "every projection, and the head"
    assert [greedy(model, prompt) for prompt in PROMPTS] == served_by_stock
    assert len({tuple(reply) for reply in served_by_stock}) > 1


def test_an_ordinary_model_is_converted_while_it_is_loaded(
    smollm2_path: Path, served_by_stock: list[list[int]]
) -> None:
    model = loader.load_model(smollm2_path)
    assert sum(isinstance(module, W12Linear) for module in model.modules()) == 30 * 7 + 1
    assert greedy(model, PROMPTS[0]) == served_by_stock[0]
