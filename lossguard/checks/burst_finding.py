"""Requests with more mismatches than stock's own spread between requests explains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import BoolArray, FloatArray, IntArray
from lossguard.checks.beta_binomial import bootstrap_fits, predictive_tail
from lossguard.checks.multiplicity import adjusted_p_values

FLAG_Q = 0.01
SIGN_ALPHA = 0.01
LONE_FLAG_P = 1e-6
MINIMUM_MISMATCHES = 3
NUM_FITS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """Mismatches and tokens per request."""

    mismatches: FloatArray  # [R]
    tokens: FloatArray  # [R]


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstFinding:
    """Flags of both arms, and the two ways in which they fail a candidate."""

    candidate_p: FloatArray  # [R] predictive p of each request
    flagged: BoolArray  # [R] candidate's flags
    counted: BoolArray  # [R] those that count: stock's reply to the prompt is not flagged, at least 3 mismatches
    num_stock_counted: int
    num_candidate_prompts: int  # prompts with a counted flag of the candidate only
    num_stock_prompts: int
    sign_p: float
    smallest_counted_p: float

    @property
    def fails(self) -> bool:
        """Counted flags beat stock's, or one of them alone is beyond chance."""
        return self.sign_p < SIGN_ALPHA or self.smallest_counted_p < LONE_FLAG_P


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstInput:
    """Both arms on the same requests, and stock's calibration."""

    candidate: RequestCounts
    stock: RequestCounts
    calibration: RequestCounts
    cluster: IntArray  # [R]
    seed: int
    num_fits: int = NUM_FITS


def find_bursts(given: BurstInput) -> BurstFinding:
    """Flag by predictive p (parametric bootstrap of the fit to all of stock's requests) and BH, then compare."""
    hits = np.concatenate([given.calibration.mismatches, given.stock.mismatches])
    trials = np.concatenate([given.calibration.tokens, given.stock.tokens])
    fits = bootstrap_fits(hits, trials, given.num_fits, given.seed)
    candidate_p = predictive_tail(given.candidate.mismatches, given.candidate.tokens, fits)
    stock_p = predictive_tail(given.stock.mismatches, given.stock.tokens, fits)
    flagged, stock_flagged = adjusted_p_values(candidate_p) <= FLAG_Q, adjusted_p_values(stock_p) <= FLAG_Q
    counted = _counted(flagged, stock_flagged, given.candidate, given.cluster)
    stock_counted = _counted(stock_flagged, flagged, given.stock, given.cluster)
    prompts = set(given.cluster[counted].tolist())
    stock_prompts = set(given.cluster[stock_counted].tolist())
    return BurstFinding(
        candidate_p=candidate_p,
        flagged=flagged,
        counted=counted,
        num_stock_counted=int(stock_counted.sum()),
        num_candidate_prompts=len(prompts),
        num_stock_prompts=len(stock_prompts),
        sign_p=_sign_test(len(prompts), len(stock_prompts)),
        smallest_counted_p=float(candidate_p[counted].min(initial=1.0)),
    )


def _counted(flagged: BoolArray, other: BoolArray, counts: RequestCounts, cluster: IntArray) -> BoolArray:
    in_both = np.isin(cluster, cluster[other])
    return np.asarray(flagged & ~in_both & (counts.mismatches >= MINIMUM_MISMATCHES))


def _sign_test(num_candidate: int, num_stock: int) -> float:
    """One-sided: P(at least this many of the prompts with a flag in one arm only fall to the candidate)."""
    if num_candidate == 0:
        return 1.0
    from scipy.special import betainc

    return float(betainc(num_candidate, num_stock + 1, 0.5))
