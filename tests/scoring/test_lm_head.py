"""The FP32 head: transforms of real architectures, refusal of unknown ones, and accuracy of its products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from lossguard.errors import ScorerError
from lossguard.scoring.lm_head import Fp32Head, HeadProduct, LogitTransform, choose_product, verify_head
from lossguard.scoring.torch_scorer import TorchScorerSpec, scorer_from_model
from tests.scoring.tiny_models import Case, make_jobs, random_ids, reference_logits, reference_row, tiny_llama

SHAPE: dict[str, Any] = {
    "vocab_size": 301,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.3,
}


def gemma2() -> Any:
    config = Gemma2Config(**SHAPE, head_dim=16, final_logit_softcapping=5.0, sliding_window=8)
    return Gemma2ForCausalLM(config)


def granite() -> Any:
    return GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=3.0, tie_word_embeddings=False))


def cohere() -> Any:
    return CohereForCausalLM(CohereConfig(**SHAPE, logit_scale=0.25))


def phi() -> Any:
    model = PhiForCausalLM(PhiConfig(**(SHAPE | {"num_key_value_heads": 2})))
    model.lm_head.bias.data.normal_()
    return model


def gpt2() -> Any:
    shape: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 96}
    return GPT2LMHeadModel(GPT2Config(vocab_size=301, initializer_range=0.3, **shape))


def bloom() -> Any:
    return BloomForCausalLM(BloomConfig(vocab_size=301, hidden_size=32, n_layer=2, n_head=2, initializer_range=0.3))


MODELS = {"gemma2": gemma2, "granite": granite, "cohere": cohere, "phi": phi, "gpt2": gpt2, "bloom": bloom}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_scores_equal_the_models_own_logits(name: str) -> None:
    torch.manual_seed(1)
    model = MODELS[name]().eval()
    generator = np.random.default_rng(7)
    shared = random_ids(generator, 14, 301)
    case = Case(
        prompt=random_ids(generator, 9, 301),
        replies=[shared + random_ids(generator, 12, 301), shared + random_ids(generator, 5, 301)],
    )
    arms = scorer_from_model(model, TorchScorerSpec(model_path="")).score(make_jobs([case]))
    logits_of = reference_logits(model)
    for reply, scores in zip(case.replies, arms, strict=True):
        for position, served in enumerate(reply):
            gap, rank, best, logprob = reference_row(logits_of(case.prompt, reply)[position], served)
            assert scores.gap[position] == pytest.approx(gap, abs=1e-4)
            assert (scores.rank[position], scores.best_id[position]) == (rank, best)
            assert scores.logprob[position] == pytest.approx(logprob, abs=1e-4)


def test_an_unknown_transform_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama()
    forward = model.forward

    def scaled(**arguments: object) -> object:
        output = forward(**arguments)
        output.logits = output.logits * 1.01
        return output

    monkeypatch.setattr(model, "forward", scaled)
    with pytest.raises(ScorerError, match="LG0505"):
        scorer_from_model(model, TorchScorerSpec(model_path=""))


def test_a_head_that_is_no_linear_layer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama()
    monkeypatch.setattr(model, "get_output_embeddings", lambda: nn.Identity())
    with pytest.raises(ScorerError, match="LG0504"):
        scorer_from_model(model, TorchScorerSpec(model_path=""))


def test_differing_shapes_and_nan_are_refused() -> None:
    logits = torch.ones(2, 5)
    with pytest.raises(ScorerError, match="LG0505"):
        verify_head(logits, torch.ones(2, 6), torch.float32, 1)
    with pytest.raises(ScorerError, match="LG0505"):
        verify_head(logits * torch.nan, logits, torch.float32, 1)


def test_rounding_to_bf16_is_not_a_transform() -> None:
    own = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0)) * 8
    assert verify_head(own, own.bfloat16(), torch.bfloat16, 1) > 0
    with pytest.raises(ScorerError, match="LG0505"):
        verify_head(own, own * 1.02, torch.bfloat16, 1)


def bf16_operands(device: str) -> tuple[torch.Tensor, nn.Linear, torch.Tensor]:
    """Hidden states, a head and the exact FP64 logits."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(70, 576, generator=generator).bfloat16()
    linear = nn.Linear(576, 3000, bias=False, dtype=torch.bfloat16)
    linear.weight.data = (torch.randn(3000, 576, generator=generator) * 0.1).bfloat16()
    exact = hidden.double() @ linear.weight.detach().double().T
    return hidden.to(device), linear.to(device), exact


@pytest.mark.parametrize("kind", ["fp32", "bf16-operands"])
def test_cpu_products_are_as_good_as_fp32(kind: str) -> None:
    hidden, linear, exact = bf16_operands("cpu")
    head = Fp32Head(linear, LogitTransform(), HeadProduct(kind=kind, reason=""))
    logits = head.logits(head.prepare(hidden), 0, 3000)
    assert logits.dtype is torch.float32
    assert float((logits - exact).abs().max()) < 2e-5  # bf16 results would be off by up to 0.03
    mkldnn: Any = torch.backends.mkldnn
    assert mkldnn.matmul.fp32_precision != "bf16"


@pytest.mark.gpu
def test_cuda_product_of_bf16_operands_is_exact_up_to_fp32_sums() -> None:
    hidden, linear, exact = bf16_operands("cuda")
    product = choose_product(torch.device("cuda"), torch.bfloat16)
    assert product.kind == "out-dtype"
    head = Fp32Head(linear, LogitTransform(), product)
    plain = Fp32Head(linear, LogitTransform(), HeadProduct(kind="fp32", reason=""))
    error = (head.logits(head.prepare(hidden), 0, 3000).cpu() - exact).abs().max()
    plain_error = (plain.logits(plain.prepare(hidden), 0, 3000).cpu() - exact).abs().max()
    assert float(error) < 2e-5
    assert float(plain_error) < 2e-5


def test_heads_in_fp32_keep_fp32_operands() -> None:
    assert choose_product(torch.device("cpu"), torch.float32).kind == "fp32"
