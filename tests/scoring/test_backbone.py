"""Caches beyond the plain one: sliding windows share, layers without a key-value cache fall back with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Lfm2Config,
    Lfm2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from lossguard.errors import ScorerError
from lossguard.scoring import backbone
from lossguard.scoring.torch_scorer import TorchScorer, TorchScorerSpec, scorer_from_model
from tests.scoring.tiny_models import Case, assert_same_scores, make_jobs, random_ids, tiny_llama

SHAPE: dict[str, Any] = {
    "vocab_size": 200,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.3,
}


def build(model: nn.Module, *, share: bool) -> TorchScorer:
    return scorer_from_model(model.eval(), TorchScorerSpec(model_path="", token_budget=80, share_prefixes=share))


def forked() -> list[Case]:
    """Prefixes of differing lengths, all beyond the windows below, with tails beyond them too."""
    generator = np.random.default_rng(11)
    cases = []
    for length in (1, 9, 17, 30):
        shared = random_ids(generator, length, 200)
        tails = [random_ids(generator, size, 200) for size in (20, 3, 11)]
        nested = shared + random_ids(generator, 18, 200)  # a second fork, long enough to be run once
        replies = [shared + tails[0], nested + tails[1], nested + tails[2]]
        cases.append(Case(prompt=random_ids(generator, 12, 200), replies=replies))
    return cases


def gemma3() -> Any:
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    return Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, head_dim=16, sliding_window=6, layer_types=layers))


def mistral() -> Any:
    return MistralForCausalLM(MistralConfig(**SHAPE, head_dim=16, sliding_window=5))


@pytest.mark.parametrize("make", [gemma3, mistral])
def test_sliding_windows_are_shared_rightly(make: Callable[[], Any]) -> None:
    torch.manual_seed(2)
    model = make()
    shared, single = build(model, share=True), build(model, share=False)
    assert shared.fingerprint()["share_prefixes"] is True
    jobs = make_jobs(forked())
    for one, other in zip(shared.score(jobs), single.score(jobs), strict=True):
        assert_same_scores(one, other, 1e-4)


def test_layers_without_a_cache_fall_back_with_the_reason() -> None:
    torch.manual_seed(2)
    config = Lfm2Config(**SHAPE, layer_types=["conv", "full_attention", "conv"], pad_token_id=0)
    model = Lfm2ForCausalLM(config)
    shared, single = build(model, share=True), build(model, share=False)
    facts = shared.fingerprint()
    assert facts["share_prefixes"] is False
    assert "conv" in str(facts["share_prefixes_reason"])
    jobs = make_jobs(forked())
    for one, other in zip(shared.score(jobs), single.score(jobs), strict=True):
        assert_same_scores(one, other, 1e-4)


def test_without_a_cache_arms_that_begin_alike_share_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    config = Lfm2Config(**SHAPE, layer_types=["conv", "full_attention", "conv"], pad_token_id=0)
    model = Lfm2ForCausalLM(config)
    jobs = make_jobs([Case(prompt=[3, 4], replies=[[5, 6, 7, 8], [5, 6, 7, 9], [5, 6, 2], [4, 1]])])
    scorers, num_rows = (build(model, share=True), build(model, share=False)), []
    run = backbone.Backbone.run

    def counted(self: backbone.Backbone, tokens: torch.Tensor) -> torch.Tensor:
        num_rows.append(len(tokens))
        return run(self, tokens)

    monkeypatch.setattr(backbone.Backbone, "run", counted)
    nested = scorers[0].score(jobs)
    assert sum(num_rows) == 2
    single = scorers[1].score(jobs)
    assert sum(num_rows) == 2 + 4
    for one, other in zip(nested, single, strict=True):
        assert_same_scores(one, other, 1e-4)


def test_a_cache_that_gives_other_states_falls_back_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    update = backbone._TailLayer.update

    def forgetful(layer: backbone._TailLayer, keys: torch.Tensor, values: torch.Tensor, **_: object) -> object:
        all_keys, all_values = update(layer, keys, values)
        return all_keys, torch.zeros_like(all_values)

    monkeypatch.setattr(backbone._TailLayer, "update", forgetful)
    facts = build(tiny_llama(), share=True).fingerprint()
    assert facts["share_prefixes"] is False
    assert "differ by" in str(facts["share_prefixes_reason"])


def test_a_model_without_a_base_model_is_refused() -> None:
    with pytest.raises(ScorerError, match="LG0503"):
        scorer_from_model(tiny_llama().model, TorchScorerSpec(model_path=""))
