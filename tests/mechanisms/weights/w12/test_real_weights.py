"""Trained weights that this repository holds: every bit survives, and few escape."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lossguard_mechanisms.weights.w12.codec import decode, encode

FIXTURES = Path(__file__).resolve().parents[4] / "fixtures"
MODELS = ("hybrid-target", "hybrid-dflash2", "hybrid-dspark", "hybrid-eagle3")


@pytest.mark.parametrize("name", MODELS)
def test_trained_matrices_keep_every_bit_and_few_weights_escape(name: str) -> None:
    weights = load_file(FIXTURES / name / "model.safetensors").values()
    matrices = [weight for weight in weights if weight.dim() == 2 and weight.dtype == torch.bfloat16]
    coded = [encode(weight) for weight in matrices]
    for weight, one in zip(matrices, coded, strict=True):
        assert torch.equal(decode(one).view(torch.int16), weight.view(torch.int16))
    num_weights = sum(weight.numel() for weight in matrices)
    assert num_weights > 400_000
    assert sum(one.num_escapes for one in coded) / num_weights < 3.5e-4
    # Rows of 192 weights: a base each, where that saves escapes, weighs more here than in matrices of a real size.
    assert 12.0 < 8 * sum(one.num_bytes for one in coded) / num_weights < 12.11
