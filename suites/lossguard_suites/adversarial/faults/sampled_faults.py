"""Faults of the sampler, at temperature above 0; greedy replies are served right.

Each one turns the target's scores into the log-probabilities of what the faulty sampler would serve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import LogitsProcessor

from lossguard.engines.extensions import BatchContext
from lossguard.records import SamplingParams
from lossguard_suites.adversarial.faults.passes import rows_in_share

NUM_CHILDREN = 3
DRAFT_TEMPERATURE = 1.5
"""The drafter's distribution: the target's, at this temperature. A drafter that agrees always would hide the fault."""

Served = Callable[[torch.Tensor, SamplingParams], torch.Tensor]
"""From scores [rows, V] and the request's sampling to log-probabilities of what is served, [rows, V]."""


class FaultySampler(LogitsProcessor):
    """Replaces the distribution in the rows that are hit, if they are sampled."""

    def __init__(self, context: BatchContext, served: Served, rows: tuple[int, ...]) -> None:
        self._sampling = context.requests[0].sampling  # one batch asks the same of the sampler
        self._served = served
        self._rows = [] if self._sampling.is_greedy else list(rows)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if not self._rows:
            return scores
        faulty = scores.clone()
        faulty[self._rows] = self._served(scores[self._rows].float(), self._sampling).to(scores.dtype)
        return faulty


def greedy_draft(context: BatchContext, *, share: float = 1.0, seed: int = 0) -> FaultySampler:
    """F49. Drafts are the drafter's argmax, yet accepted with probability p / q as if drawn from its softmax q."""

    def served(scores: torch.Tensor, _sampling: SamplingParams) -> torch.Tensor:
        target, draft = scores.softmax(dim=-1), (scores / DRAFT_TEMPERATURE).softmax(dim=-1)
        best = draft.argmax(dim=-1, keepdim=True)
        accepted = (target.gather(1, best) / draft.gather(1, best)).clamp(max=1.0)  # [rows, 1]
        picked = torch.zeros_like(target).scatter(1, best, 1.0)
        return (accepted * picked + (1 - accepted) * residual(target, draft)).log()

    return FaultySampler(context, served, rows_in_share(context, share, seed))


def rounded_draft(context: BatchContext, *, share: float = 1.0, seed: int = 0) -> FaultySampler:
    """F52. Drafts are drawn from a bfloat16 copy of the drafter's logits, and accepted with the exact ones."""

    def served(scores: torch.Tensor, _sampling: SamplingParams) -> torch.Tensor:
        target, draft = scores.softmax(dim=-1), (scores / DRAFT_TEMPERATURE).softmax(dim=-1)
        drawn = (scores / DRAFT_TEMPERATURE).to(torch.bfloat16).float().softmax(dim=-1)
        kept = drawn * (target / draft.clamp_min(torch.finfo(torch.float32).tiny)).clamp(max=1.0)
        return (kept + (1 - kept.sum(dim=-1, keepdim=True)).clamp_min(0) * residual(target, draft)).log()

    return FaultySampler(context, served, rows_in_share(context, share, seed))


def early_nucleus(context: BatchContext, *, share: float = 1.0, seed: int = 0) -> FaultySampler:
    """F51. Top-p is cut from the distribution before temperature, so that its support changes with temperature."""

    def served(scores: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
        values, order = scores.sort(dim=-1, descending=True)
        before = values.softmax(dim=-1).cumsum(dim=-1) - values.softmax(dim=-1)
        outside = torch.zeros_like(scores, dtype=torch.bool).scatter(1, order, before >= sampling.top_p)
        return scores.masked_fill(outside, float("-inf"))

    return FaultySampler(context, served, rows_in_share(context, share, seed))


def served_greedily(context: BatchContext, *, share: float = 1.0, seed: int = 0) -> FaultySampler:
    """F53 and F67. The best token is served, whatever the temperature."""

    def served(scores: torch.Tensor, _sampling: SamplingParams) -> torch.Tensor:
        only = torch.full_like(scores, float("-inf"))
        return only.scatter(1, scores.argmax(dim=-1, keepdim=True), 0.0)

    return FaultySampler(context, served, rows_in_share(context, share, seed))


def lax_threshold(context: BatchContext, *, looseness: float = 1.0, share: float = 1.0, seed: int = 0) -> FaultySampler:
    """Drafted children are accepted once their cumulative probability, times 1 + looseness, passes the coin.

    The coin form of sample-and-match with a threshold 1 / (1 + looseness): exact at looseness 0, lossy over it.
    """

    def served(scores: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
        target = (scores / sampling.temperature).softmax(dim=-1)
        children = scores.topk(NUM_CHILDREN, dim=-1).indices
        passed = (target.gather(1, children).cumsum(dim=-1) * (1 + looseness)).clamp(max=1.0)
        accepted = passed.diff(dim=-1, prepend=torch.zeros_like(passed[:, :1]))
        rest = target.scatter(1, children, 0.0)
        rest = rest / rest.sum(dim=-1, keepdim=True) * (1 - passed[:, -1:])
        return rest.scatter(1, children, accepted).log() * sampling.temperature

    return FaultySampler(context, served, rows_in_share(context, share, seed))


def ratio_of_best_children(context: BatchContext, *, share: float = 1.0, seed: int = 0) -> FaultySampler:
    """Children are the drafter's best tokens, yet accepted in turn with probability p / q as if drawn from q."""

    def served(scores: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
        target = (scores / sampling.temperature).softmax(dim=-1)
        draft = (scores / DRAFT_TEMPERATURE).softmax(dim=-1)
        left, law, current = torch.ones_like(target[:, :1]), torch.zeros_like(target), target
        for child in draft.topk(NUM_CHILDREN, dim=-1).indices.T:
            child = child[:, None]
            accepted = left * (current.gather(1, child) / draft.gather(1, child)).clamp(max=1.0)
            law = law.scatter_add(1, child, accepted)
            left, current = left - accepted, residual(current, draft)
        return (law + left * current).log() * sampling.temperature

    return FaultySampler(context, served, rows_in_share(context, share, seed))


def cooled(context: BatchContext, *, excess: float = 1 / 9, share: float = 1.0, seed: int = 0) -> FaultySampler:
    """Logits are scaled by 1 + excess: a temperature of 0.9 where 1 was asked for."""

    def served(scores: torch.Tensor, _sampling: SamplingParams) -> torch.Tensor:
        return scores * (1 + excess)

    return FaultySampler(context, served, rows_in_share(context, share, seed))


def undeclared_nucleus(context: BatchContext, *, cut: float = 0.05, share: float = 1.0, seed: int = 0) -> FaultySampler:
    """Top-p of 1 - cut, which nobody asked for (a default of the server, or of the model's generation_config.json)."""

    def served(scores: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
        values, order = scores.sort(dim=-1, descending=True)
        shares = (values / sampling.temperature).softmax(dim=-1)
        outside = shares.cumsum(dim=-1) - shares >= 1 - cut
        return scores.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), float("-inf"))

    return FaultySampler(context, served, rows_in_share(context, share, seed))


def residual(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """What rejection sampling draws from after a refusal: max(0, p - q), normalised. p where they are equal.

    Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", algorithm 1.
    """
    left = (target - draft).clamp_min(0)
    total = left.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, left / total.clamp_min(torch.finfo(torch.float32).tiny), target)
