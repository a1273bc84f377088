"""What stays raw, and why."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lossguard_mechanisms.weights.w12.policy import decide
from tests.mechanisms.weights.w12.toy_weights import bf16_of, gaussian


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (torch.zeros(4, 4), "dtype is float32"),
        (gaussian(64), "fewer than two dimensions"),
        (torch.empty(0, 4, dtype=torch.bfloat16), "empty"),
        (bf16_of(torch.arange(4096) * 16).view(64, 64), "would escape, the limit is 0.02"),
        (gaussian(64, 64, 3, 3), "bits per weight with padding"),
    ],
)
def test_it_stays_raw_with_a_reason(weight: Tensor, reason: str) -> None:
    decision = decide(weight)
    assert decision.coded is None
    assert decision.reason.startswith("raw: ")
    assert reason in decision.reason


def test_the_limit_is_what_decides() -> None:
    weight = gaussian(64, 64)
    weight[0, :41] = float("inf")
    assert decide(weight, escape_limit=0.01).coded is None
    coded = decide(weight, escape_limit=0.02).coded
    assert coded is not None
    assert 0.01 < coded.num_escapes / weight.numel() < 0.02
