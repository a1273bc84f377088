"""Tiny random models, jobs over them, and an independent FP64 reference of every column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from lossguard.records import FinishReason, ForcedScores, Request, SamplingParams, ServedOutput
from lossguard.scoring.base import ScoringJob

VOCAB_SIZE = 512
FloatArray = NDArray[np.float64]
LogitsOf = Callable[[Sequence[int], Sequence[int]], FloatArray]


def tiny_llama(**changes: Any) -> Any:
    """A random Llama with wide logits, so that entropies vary; FP32 unless cast."""
    values: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.15,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**(values | changes))).eval()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A prompt, the replies of every arm and the sampling."""

    prompt: Sequence[int]
    replies: Sequence[Sequence[int]]
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(max_tokens=64))


def make_jobs(cases: Sequence[Case]) -> list[ScoringJob]:
    """Jobs with ids ``r0``, ``r1``, ..."""
    jobs = []
    for index, case in enumerate(cases):
        name = f"r{index}"
        request = Request(id=name, prompt_ids=tuple(case.prompt), sampling=case.sampling, set="t", cluster=name)
        outputs = [
            ServedOutput(request_id=name, ids=tuple(reply), finish_reason=FinishReason.STOP) for reply in case.replies
        ]
        jobs.append(ScoringJob(request=request, outputs=tuple(outputs)))
    return jobs


def random_ids(generator: np.random.Generator, length: int, vocab_size: int = VOCAB_SIZE) -> list[int]:
    """Uniform token ids."""
    return [int(token) for token in generator.integers(0, vocab_size, length)]


def reference_logits(model: Any) -> LogitsOf:
    """FP64 logits [n, V] of the positions of a reply, one sequence at a time, by the model's own forward in FP64."""
    exact = type(model)(model.config).double().eval()
    exact.load_state_dict(model.state_dict())

    @torch.inference_mode()
    def logits_of(prompt: Sequence[int], reply: Sequence[int]) -> FloatArray:
        tokens = torch.tensor([[*prompt, *reply[:-1]]])
        logits: FloatArray = exact(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 :].double().numpy()
        return logits

    return logits_of


def reference_row(logits: FloatArray, served: int) -> tuple[float, int, int, float]:
    """(gap, rank, best id, log-probability) of one position by a plain loop's definition."""
    best = int(np.argmax(logits))
    mine = logits[served]
    rank = sum(1 for token, value in enumerate(logits) if value > mine or (value == mine and token < served))
    shifted = logits - logits[best]
    return float(logits[best] - mine), rank, best, float(mine - logits[best] - np.log(np.exp(shifted).sum()))


def assert_same_scores(one: ForcedScores, other: ForcedScores, tolerance: float) -> None:
    """Equal ids, ranks and flags; logits within the tolerance."""
    assert one.request_ids == other.request_ids
    for name in ("offsets", "served_id", "rank", "best_id", "top_ids", "finite"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name in ("gap", "best_logit", "logprob", "top_logits"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=0, atol=tolerance, err_msg=name)
