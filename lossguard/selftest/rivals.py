"""Four rules of other projects, on the same outputs and forced scores as the gate.

Written from their published descriptions; docs/validity.md says where each is used, and credits them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lossguard.checks.base import CheckInput, FloatArray
from lossguard.checks.clusters import request_sums
from lossguard.records import ForcedScores

TOKEN_GAP_NATS = 0.25
REQUEST_GAP_NATS = 0.5
MATCH_RATE = 0.97
MEAN_KL_NATS = 0.02


def exact_match(given: CheckInput) -> bool:
    """Red if any reply differs from stock's. Used by token-for-token tests of speculative decoding."""
    pairs = zip(given.candidate.outputs, given.stock.outputs, strict=True)
    return any(candidate.ids != stock.ids for candidate, stock in pairs)


def hard_bound(given: CheckInput) -> bool:
    """Red if a token's gap is over 0.25 nats or a reply's gaps add up to over 0.5 (vLLM's ``accuracy_utils``)."""
    scores = given.candidate.scores
    gap = np.where(scores.finite, scores.gap, 0.0).astype(np.float64)
    return bool((gap > TOKEN_GAP_NATS).any() or (request_sums(gap, scores) > REQUEST_GAP_NATS).any())


def match_rate(given: CheckInput) -> bool:
    """Red if fewer than 97 % of the served tokens are the reference's best one (``audit_provider`` of token-difr's
    repository; its releases set no threshold)."""
    scores = given.candidate.scores
    return bool((scores.rank == 0).mean() < MATCH_RATE)


def mean_kl(given: CheckInput) -> bool:
    """Red if the mean KL is over 0.02 nats a token (SGLang's ``kl_test_utils`` for one model), from below.

    They estimate it from the log-probabilities that the engine reports for sampled replies. Greedy replies report
    none here, so this is the least KL that any distribution with the served token on top can have (``least_kl``).
    """
    return float(least_kl(given.candidate.scores).mean()) > MEAN_KL_NATS


def least_kl(scores: ForcedScores) -> FloatArray:
    """[T] min KL(q || p) over all q with q(served) >= q(best), p the forced distribution at temperature 1, in nats.

    The minimum tilts p on these two tokens until they are equal: -log(1 - (sqrt p_best - sqrt p_served)^2), the
    I-projection onto a half-space (Csiszar 1975). Other tokens in between are ignored, which lowers it further.
    """
    gap = scores.gap.astype(np.float64)
    is_known = scores.finite & np.isfinite(scores.best_logit)
    # an id beyond the vocabulary has no probability; its best token's is that of the top-k, at most 1
    finite_gap = np.isfinite(gap)
    served = np.where(finite_gap, np.exp(np.minimum(scores.logprob.astype(np.float64), 0.0)), 0.0)
    best = np.where(finite_gap, served * np.exp(np.where(finite_gap, gap, 0.0)), 1.0 - 1e-12)
    distance = np.square(np.sqrt(np.minimum(best, 1.0)) - np.sqrt(served))
    return np.where(is_known, -np.log1p(-np.minimum(distance, 1.0 - 1e-12)), 0.0)


RIVALS: dict[str, Callable[[CheckInput], bool]] = {
    "exact match": exact_match,
    "0.25 nats a token, 0.5 a reply": hard_bound,
    "97 % match rate": match_rate,
    "mean KL 0.02": mean_kl,
}
