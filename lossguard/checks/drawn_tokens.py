"""Served tokens as draws from the target's own distribution: what each says about how it was drawn.

If token t was drawn from the forced distribution p_t, its surprisal minus the entropy of p_t has mean 0 and the
variance of the surprisal, whatever came before: a martingale difference. And F_t(y-) + V p_t(y), V uniform, is uniform
(Rosenblatt 1952), tokens taken in descending probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from lossguard.checks.base import Arm, BoolArray, CheckInput, FloatArray
from lossguard.checks.clusters import request_of_tokens
from lossguard.checks.delta import is_scored
from lossguard.records import ForcedScores

NUM_BINS: Final = 20
"""Of the probability integral transform; its distribution is looked at between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTokens:
    """One arm's T tokens. ``is_drawn`` are those with a distribution, inside it; the other columns hold 0 elsewhere."""

    scores: ForcedScores
    is_drawn: BoolArray  # [T]
    surprise: FloatArray  # [T] -log p(y) minus the entropy, nats
    variance: FloatArray  # [T] of the surprisal under p, nats squared

    @property
    def num_drawn(self) -> int:
        """Tokens that say something."""
        return int(self.is_drawn.sum())

    @property
    def mean_variance(self) -> float:
        """Nats squared per token; 0 without a token."""
        return float(self.variance.sum()) / max(self.num_drawn, 1)

    @property
    def z(self) -> float:
        """Sum of the surprises over its standard deviation: standard normal for draws from exactly p; 0 without any.

        Over 0: too hot, under 0: too cold. Tokens may depend on each other as they like.
        """
        spread = float(self.variance.sum()) ** 0.5
        return float(self.surprise.sum()) / spread if spread > 0 else 0.0


def has_sampled_columns(scores: ForcedScores) -> bool:
    """Whether the scorer delivered what sampled replies are judged by."""
    return scores.sampled_logprob is not None and scores.support_gap is not None


def sampled_tokens(given: CheckInput, arm: Arm) -> BoolArray:
    """[T] tokens of sampled requests whose distribution the scorer knows."""
    asked = np.array([not request.sampling.is_greedy for request in given.requests], dtype=np.bool_)
    usable = asked[request_of_tokens(arm.scores)] & is_scored(arm.scores)
    return usable if arm.scores.replayed is None else usable & arm.scores.replayed


def drawn_tokens(given: CheckInput, arm: Arm) -> DrawnTokens:
    """Of tokens outside the support only the support check speaks: their surprisal is infinite."""
    scores = arm.scores
    assert scores.in_support is not None, "sampled columns exist together"
    assert scores.sampled_logprob is not None, "sampled columns exist together"
    assert scores.entropy is not None, "sampled columns exist together"
    assert scores.surprisal_variance is not None, "sampled columns exist together"
    drawn = sampled_tokens(given, arm) & scores.in_support & np.isfinite(scores.sampled_logprob)
    surprisal = -np.where(drawn, scores.sampled_logprob, 0.0).astype(np.float64)
    return DrawnTokens(
        scores=scores,
        is_drawn=drawn,
        surprise=np.where(drawn, surprisal - scores.entropy, 0.0),
        variance=np.where(drawn, scores.surprisal_variance, 0.0).astype(np.float64),
    )


def share_below(tokens: DrawnTokens, level: float) -> FloatArray:
    """[T] probability that the randomised transform of each token is under ``level``; 0 for tokens that were not drawn.

    The mean over V of the randomised transform, so that no draw of V adds noise (Czado, Gneiting and Held 2009, eq. 2).
    """
    scores = tokens.scores
    assert scores.pit_low is not None, "sampled columns exist together"
    assert scores.pit_high is not None, "sampled columns exist together"
    low, width = scores.pit_low.astype(np.float64), (scores.pit_high - scores.pit_low).astype(np.float64)
    part = (level - low) / np.maximum(width, 1e-12)  # single precision leaves widths of 6e-8, or none
    return np.where(tokens.is_drawn, np.clip(part, 0.0, 1.0), 0.0)
