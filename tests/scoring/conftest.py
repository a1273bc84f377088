"""Fixtures of the scorer tests."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lossguard.scoring.torch_scorer import TorchScorer, TorchScorerSpec, scorer_from_model
from tests.scoring.tiny_models import tiny_llama


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tiny products are fastest on one thread, and tests share the machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llama() -> Any:
    """The default tiny model; tests must not change it."""
    return tiny_llama()


@pytest.fixture(scope="session")
def scorer(llama: Any) -> TorchScorer:
    """Shares prefixes; a small budget, so that there are several batches."""
    return scorer_from_model(llama, TorchScorerSpec(model_path="", token_budget=96))


@pytest.fixture(scope="session")
def single_pass_scorer(llama: Any) -> TorchScorer:
    """Does not share prefixes."""
    return scorer_from_model(llama, TorchScorerSpec(model_path="", token_budget=96, share_prefixes=False))
