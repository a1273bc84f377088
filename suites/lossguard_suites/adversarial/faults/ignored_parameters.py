"""Faults in which a parameter of the request is not, or only partly, applied."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LogitsProcessor

from lossguard.engines.extensions import BatchContext
from lossguard_suites.adversarial.faults.drawing import chance
from lossguard_suites.adversarial.faults.passes import rows_in_share


class UndonePenalty(LogitsProcessor):
    """Takes the repetition penalty back for all tokens but those at some places of the context.

    The penalty has been applied before: positive scores divided by it, negative ones multiplied, once per id.
    """

    def __init__(self, context: BatchContext, *, stride: int, rows: tuple[int, ...]) -> None:
        self._penalties = [request.sampling.repetition_penalty for request in context.requests]
        self._stride = stride  # every so many tokens one is counted; 0: none is
        self._rows = [row for row in rows if self._penalties[row] != 1.0]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if not self._rows:
            return scores
        freed = scores.clone()
        for row in self._rows:
            ids = input_ids[row]
            uncounted = torch.unique(ids)
            if self._stride:
                counted = ids[:: self._stride]
                uncounted = uncounted[~torch.isin(uncounted, counted)]
            values, penalty = scores[row, uncounted], self._penalties[row]
            freed[row, uncounted] = torch.where(values < 0, values / penalty, values * penalty)
        return freed


def ignored_penalty(context: BatchContext, *, share: float = 1.0, seed: int = 0) -> UndonePenalty:
    """F33. The penalty is never read, in a ``share`` of requests."""
    return UndonePenalty(context, stride=0, rows=rows_in_share(context, share, seed))


def thin_penalty(context: BatchContext, *, share: float = 1.0, stride: int = 4, seed: int = 0) -> UndonePenalty:
    """F32. Only one token in ``stride`` (the last of each accepted block) is counted."""
    return UndonePenalty(context, stride=stride, rows=rows_in_share(context, share, seed))


class UndoneBias(LogitsProcessor):
    """Takes the request's logit bias back at some steps: the mask is not applied to the bonus token."""

    def __init__(self, context: BatchContext, *, probability: float, stride: int, seed: int) -> None:
        self._context = context
        self._probability = probability
        self._stride = stride
        self._seed = seed

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        position = input_ids.shape[1] - self._context.prompt_length
        if position % self._stride != self._stride - 1:
            return scores
        freed = scores.clone()
        for row, request in enumerate(self._context.requests):
            if chance("bonus", self._seed, request.id, position) < self._probability:
                for token, bias in request.sampling.logit_bias:
                    freed[row, token] -= bias
        return freed


def unmasked_bonus(context: BatchContext, *, probability: float = 1.0, stride: int = 4, seed: int = 0) -> UndoneBias:
    """F35. The last token of each block of ``stride`` is chosen without the mask, with ``probability``.

    The mask is a ``logit_bias`` that rules ids out, as a grammar's would.
    """
    return UndoneBias(context, probability=probability, stride=stride, seed=seed)
