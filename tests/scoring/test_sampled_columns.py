"""Sampled columns against an FP64 reference that sorts everything, and through the scorer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lossguard.records import SamplingParams
from lossguard.scoring import sampled_columns as module
from lossguard.scoring.sampled_columns import sampled_columns, stack_sampling
from lossguard.scoring.torch_scorer import TorchScorer
from tests.scoring.tiny_models import Case, FloatArray, make_jobs, random_ids, reference_logits

NAMES = ("entropy", "surprisal_variance", "pit_low", "pit_high", "in_support", "sampled_logprob")


def reference(logits: FloatArray, served: int, sampling: SamplingParams) -> dict[str, float]:
    """Everything from the sorted FP64 distribution after transformers' own warpers."""
    scores: Any = torch.from_numpy(logits)[None]
    nothing: Any = None  # the warpers do not look at the tokens before
    scores = TemperatureLogitsWarper(sampling.temperature)(nothing, scores)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(nothing, scores)
    if sampling.top_p < 1.0:
        scores = TopPLogitsWarper(sampling.top_p)(nothing, scores)
    if sampling.min_p > 0.0:
        scores = MinPLogitsWarper(sampling.min_p)(nothing, scores)
    p = torch.softmax(scores[0], dim=-1).numpy()
    order = np.lexsort((np.arange(len(p)), -logits))
    surprisal = -np.log(p[p > 0])
    entropy = float((p[p > 0] * surprisal).sum())
    before = float(p[order[: int(np.flatnonzero(order == served)[0])]].sum())
    inside = bool(p[served] > 0)
    return {
        "entropy": entropy,
        "surprisal_variance": float((p[p > 0] * (surprisal - entropy) ** 2).sum()),
        "pit_low": before if inside else 1.0,
        "pit_high": before + float(p[served]) if inside else 1.0,
        "in_support": float(inside),
        "sampled_logprob": float(np.log(p[served])) if inside else -np.inf,
    }


parameters = st.builds(
    SamplingParams,
    max_tokens=st.just(8),
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.9]),
    top_k=st.sampled_from([0, 1, 5, 40, 5000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(parameters, min_size=1, max_size=4), st.integers(0, 10_000), st.sampled_from([0.3, 3.0, 9.0]))
def test_columns_equal_the_reference(several: list[SamplingParams], seed: int, spread: float) -> None:
    generator = np.random.default_rng(seed)
    logits = (generator.standard_normal((len(several), 97)) * spread).astype(np.float32)
    served = generator.integers(0, 97, len(several))
    served[0] = logits[0].argmax()
    rows = stack_sampling(several, torch.arange(len(several)), torch.device("cpu"))
    columns = sampled_columns(torch.from_numpy(logits.copy()), torch.from_numpy(served), rows)
    for index, sampling in enumerate(several):
        expected = reference(logits[index].astype(np.float64), int(served[index]), sampling)
        for name in NAMES:
            assert float(columns[name][index]) == pytest.approx(expected[name], abs=2e-5), name


def test_flat_distributions_need_more_than_a_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_LOOK", 4)
    generator = np.random.default_rng(0)
    logits = (generator.standard_normal((3, 200)) * 0.1).astype(np.float32)
    several = [
        SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9),
        SamplingParams(max_tokens=1, temperature=1.0, top_k=77, top_p=0.9),
        SamplingParams(max_tokens=1, temperature=1.0, top_k=77),
    ]
    served = torch.tensor([5, 6, 7])
    rows = stack_sampling(several, torch.arange(3), torch.device("cpu"))
    columns = sampled_columns(torch.from_numpy(logits.copy()), served, rows)
    for index, sampling in enumerate(several):
        expected = reference(logits[index].astype(np.float64), int(served[index]), sampling)
        for name in NAMES:
            assert float(columns[name][index]) == pytest.approx(expected[name], abs=2e-5), name


def test_served_draws_give_a_uniform_pit_and_a_centred_surprisal() -> None:
    generator = np.random.default_rng(3)
    logits = (generator.standard_normal((4000, 50)) * 2).astype(np.float32)
    sampling = SamplingParams(max_tokens=1, temperature=0.8, top_p=0.9)
    rows = stack_sampling([sampling], torch.zeros(4000, dtype=torch.int64), torch.device("cpu"))
    nothing: Any = None
    warped: Any = TopPLogitsWarper(0.9)(nothing, torch.from_numpy(logits.copy()) / 0.8)
    p = torch.softmax(warped, dim=-1)
    served = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(0)).squeeze(1)
    columns = sampled_columns(torch.from_numpy(logits.copy()), served, rows)
    assert bool(columns["in_support"].all())
    u = columns["pit_low"] + torch.rand(4000) * (columns["pit_high"] - columns["pit_low"])
    assert abs(float(u.mean()) - 0.5) < 4 * (1 / 12 / 4000) ** 0.5
    surprisal = -p.gather(1, served[:, None]).squeeze(1).log()
    z = (surprisal - columns["entropy"]).sum() / columns["surprisal_variance"].sum().sqrt()
    assert abs(float(z)) < 4


def test_through_the_scorer_with_greedy_requests_beside(llama: Any, scorer: TorchScorer) -> None:
    logits_of = reference_logits(llama)
    generator = np.random.default_rng(9)
    sampling = SamplingParams(max_tokens=20, temperature=0.7, top_k=30, top_p=0.9, min_p=0.02)
    cases = [
        Case(prompt=random_ids(generator, 5), replies=[random_ids(generator, 18)], sampling=sampling),
        Case(prompt=random_ids(generator, 6), replies=[random_ids(generator, 7)]),
        Case(prompt=random_ids(generator, 6), replies=[[4, 512]], sampling=sampling),
    ]
    scores = scorer.score(make_jobs(cases))[0]
    logits = logits_of(cases[0].prompt, cases[0].replies[0])
    for position, served in enumerate(cases[0].replies[0]):
        expected = reference(logits[position], served, sampling)
        for name in NAMES:
            assert float(getattr(scores, name)[position]) == pytest.approx(expected[name], abs=1e-4), name
    assert scores.pit_low is not None
    assert scores.pit_high is not None
    assert scores.in_support is not None
    assert scores.in_support[18:25].all()
    assert scores.pit_low[18:25].tolist() == [0.0] * 7
    assert not scores.in_support[26]
    assert scores.pit_low[26] == 1.0
    assert scores.gap[26] == np.inf


@settings(max_examples=80, deadline=None)
@given(parameters, st.integers(0, 10_000), st.sampled_from([0.3, 3.0, 9.0]))
def test_support_gap_is_what_lets_the_token_in(sampling: SamplingParams, seed: int, spread: float) -> None:
    """Its logit raised by the gap and a little is allowed; where no probability is cut, a little less is not."""
    generator = np.random.default_rng(seed)
    logits = (generator.standard_normal((1, 97)) * spread).astype(np.float32)
    served = torch.tensor([int(generator.integers(0, 97))])
    rows = stack_sampling([sampling], torch.zeros(1, dtype=torch.int64), torch.device("cpu"))
    gap = float(sampled_columns(torch.from_numpy(logits.copy()), served, rows)["support_gap"][0])
    inside = sampled_columns(torch.from_numpy(logits.copy()), served, rows)["in_support"][0]
    assert gap == 0.0 or not inside
    if sampling.top_p < 1.0:
        return
    for change, allowed in ((1.001 * gap + 1e-4, True), (0.999 * gap - 1e-4, gap <= 1e-4)):
        moved = logits.copy()
        moved[0, int(served[0])] += np.float32(change)
        assert bool(sampled_columns(torch.from_numpy(moved), served, rows)["in_support"][0]) is (
            allowed or bool(inside)
        )


def test_support_gap_by_probability_is_the_distance_of_the_odds() -> None:
    """Probabilities 0.5, 0.31, 0.19 at top-p 0.8: the third is out by log(0.81 / 0.19) - log(0.8 / 0.2)."""
    logits = torch.tensor([[0.5, 0.31, 0.19]]).log()
    sampling = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.8)
    rows = stack_sampling([sampling], torch.zeros(1, dtype=torch.int64), torch.device("cpu"))
    columns = sampled_columns(logits, torch.tensor([2]), rows)
    assert float(columns["support_gap"][0]) == pytest.approx(np.log(0.81 / 0.19) - np.log(4.0), abs=1e-5)
    assert float(columns["pit_low"][0]) == 1.0


def test_a_token_that_does_not_exist_is_infinitely_far_outside() -> None:
    rows = stack_sampling(
        [SamplingParams(max_tokens=1, temperature=1.0)], torch.zeros(1, dtype=torch.int64), torch.device("cpu")
    )
    columns = sampled_columns(torch.zeros(1, 5), torch.tensor([-1]), rows)
    assert float(columns["support_gap"][0]) == np.inf
    assert float(columns["sampled_logprob"][0]) == -np.inf
    assert not columns["in_support"][0]
