"""Faulty samplers: the distribution that each one serves is the one that its algorithm gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lossguard_suites.adversarial.faults.ignored_parameters import ignored_penalty, thin_penalty, unmasked_bonus
from lossguard_suites.adversarial.faults.improbable_draw import improbable_draw
from lossguard_suites.adversarial.faults.sampled_faults import (
    DRAFT_TEMPERATURE,
    early_nucleus,
    greedy_draft,
    residual,
    rounded_draft,
    served_greedily,
)
from tests.suites.tiny_faults import context_of, make_requests

SCORES = torch.tensor([[3.0, 2.5, 1.0, -1.0, -2.0]])
IDS = torch.zeros(1, 4, dtype=torch.int64)


def served(factory: Any, **sampling: Any) -> torch.Tensor:
    """Probabilities [V] that a faulty sampler serves."""
    processor = factory(context_of(make_requests(1, temperature=1.0, **sampling)))
    scores: torch.Tensor = processor(IDS, SCORES)
    return scores[0].softmax(dim=-1)


def test_rejection_sampling_with_true_draft_probabilities_is_exact() -> None:
    """The formula behind the faults: with q as drawn, acceptance and residual give p."""
    target, draft = SCORES.softmax(dim=-1), (SCORES / DRAFT_TEMPERATURE).softmax(dim=-1)
    kept = draft * (target / draft).clamp(max=1.0)
    total = kept + (1 - kept.sum()) * residual(target, draft)
    assert torch.allclose(total, target, atol=1e-6)
    assert torch.allclose(residual(target, target), target)


def test_a_greedy_draft_lifts_the_best_token() -> None:
    target, draft = SCORES[0].softmax(dim=-1), (SCORES[0] / DRAFT_TEMPERATURE).softmax(dim=-1)
    probabilities = served(greedy_draft)
    accepted = min(1.0, float(target[0] / draft[0]))
    left = (target - draft).clamp_min(0)
    assert torch.allclose(probabilities, accepted * torch.eye(5)[0] + (1 - accepted) * left / left.sum(), atol=1e-6)
    assert float(probabilities[0]) > float(target[0]) + 0.1


def test_a_rounded_draft_changes_little() -> None:
    scores = torch.randn(1, 200, generator=torch.Generator().manual_seed(0)) * 4
    processor = rounded_draft(context_of(make_requests(1, temperature=1.0)))
    change = (processor(IDS, scores).softmax(dim=-1) - scores.softmax(dim=-1)).abs().sum()
    assert 1e-5 < float(change) < 0.05


def test_an_early_nucleus_has_another_support() -> None:
    probabilities = SCORES[0].softmax(dim=-1)
    limit = float(probabilities[0]) + 0.01  # the nucleus of temperature 1: the best two
    assert (served(early_nucleus, top_p=limit) > 0).tolist() == [True, True, False, False, False]


def test_the_best_token_is_served_only_where_replies_are_sampled() -> None:
    assert served(served_greedily).tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    greedy = served_greedily(context_of(make_requests(1)))
    assert greedy(IDS, SCORES) is SCORES


def test_an_improbable_draw_is_the_likeliest_of_a_tail_and_strikes_once() -> None:
    context = context_of(make_requests(1, temperature=2.0))
    probabilities = (SCORES[0] / 2.0).softmax(dim=-1)
    tails = probabilities.flip(0).cumsum(0).flip(0)  # scores descend
    processor = improbable_draw(context, every=1, tail=float(tails[3]) + 1e-6)
    found = [processor(torch.zeros(1, context.prompt_length + at, dtype=torch.int64), SCORES) for at in range(32)]
    struck = [scores for scores in found if scores is not SCORES]
    assert len(struck) == 1
    assert struck[0].softmax(dim=-1)[0].tolist() == [0.0, 0.0, 0.0, 1.0, 0.0]
    greedy = improbable_draw(context_of(make_requests(1)), every=1)
    assert all(greedy(torch.zeros(1, at, dtype=torch.int64), SCORES) is SCORES for at in range(70))
    with pytest.raises(ValueError, match="no token has a tail"):
        improbable_draw(context, every=1, window=(4, 4))(torch.zeros(1, context.prompt_length + 4), 0 * SCORES)


def penalised(scores: torch.Tensor, ids: torch.Tensor, penalty: float) -> torch.Tensor:
    """As transformers applies a repetition penalty."""
    values = scores.gather(1, ids)
    return scores.scatter(1, ids, torch.where(values < 0, values * penalty, values / penalty))


def test_an_ignored_penalty_gives_the_scores_back() -> None:
    context = context_of(make_requests(1, repetition_penalty=1.5))
    ids = torch.tensor([[0, 3, 3, 4]])
    seen = penalised(SCORES, ids, 1.5)
    assert not torch.allclose(seen, SCORES)
    assert torch.allclose(ignored_penalty(context)(ids, seen), SCORES)
    assert torch.allclose(ignored_penalty(context, share=0.0)(ids, seen), seen)


def test_a_thin_penalty_counts_one_token_in_so_many() -> None:
    context = context_of(make_requests(1, repetition_penalty=1.5))
    ids = torch.tensor([[0, 1, 2, 3, 4]])
    thin = thin_penalty(context, stride=4)(ids, penalised(SCORES, ids, 1.5))
    assert torch.allclose(thin, penalised(SCORES, ids[:, ::4], 1.5))


@pytest.mark.parametrize(("position", "is_freed"), [(0, False), (2, False), (3, True), (7, True)])
def test_the_bonus_token_is_unmasked(position: int, *, is_freed: bool) -> None:
    context = context_of(make_requests(1, logit_bias=((1, -100.0), (4, -100.0))))
    masked = SCORES + torch.tensor([0.0, -100.0, 0.0, 0.0, -100.0])
    ids = torch.zeros(1, context.prompt_length + position, dtype=torch.int64)
    freed = unmasked_bonus(context)(ids, masked)
    assert torch.allclose(freed, SCORES if is_freed else masked, atol=1e-4)
