"""Symmetry inside ties: does the candidate pick the lower-ranked of two near-tied tokens more often than stock?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import FloatArray, IntArray, Thresholds
from lossguard.checks.clusters import request_of_tokens
from lossguard.checks.delta import delta_per_token, is_tie, top_two_gap
from lossguard.records import ForcedScores

NUM_BINS = 4
"""Equal parts of delta; the nearer the tie, the more often any stack picks the lower-ranked token."""
NUM_FLIPS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TieCounts:
    """Ties and lower-ranked picks of both arms by cluster and bin, [..., K, NUM_BINS]."""

    candidate_lower: FloatArray
    candidate_ties: FloatArray
    stock_lower: FloatArray
    stock_ties: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetry:
    """One-sided p for 'not more often than stock', stratified by bin, and both arms' standardised shares."""

    p_value: FloatArray  # [M]
    candidate_share: FloatArray  # [M] of ties where the lower-ranked token was picked
    stock_share: FloatArray


def tie_counts(scores: ForcedScores, thresholds: Thresholds, cluster: IntArray) -> tuple[FloatArray, FloatArray]:
    """Lower-ranked picks and ties of one arm, each [K, NUM_BINS], binned by top-2 gap over delta."""
    tie = np.flatnonzero(is_tie(scores, thresholds))
    delta = np.maximum(delta_per_token(scores, thresholds)[tie], 1e-300)
    tie_bin = np.minimum((top_two_gap(scores)[tie] / delta * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    num_clusters = int(cluster.max()) + 1
    cell = cluster[request_of_tokens(scores)[tie]] * NUM_BINS + tie_bin
    size = num_clusters * NUM_BINS
    lower = np.bincount(cell, weights=(scores.gap[tie] > 0).astype(np.float64), minlength=size).astype(np.float64)
    ties = np.bincount(cell, minlength=size).astype(np.float64)
    return lower.reshape(-1, NUM_BINS), ties.reshape(-1, NUM_BINS)


def sign_flips(num_clusters: int, seed: int, num_flips: int = NUM_FLIPS) -> FloatArray:
    """[F, K] random signs: which clusters have their arms exchanged."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 2, size=(num_flips, num_clusters)).astype(np.float64) * 2 - 1


def symmetry_test(given: TieCounts, flips: FloatArray) -> Symmetry:
    """Mantel-Haenszel difference over bins, referred to exchanging the arms within clusters.

    With shares pooled over both arms, a cluster's contribution changes only its sign when its arms are exchanged,
    and the sum is twice the Mantel-Haenszel numerator. The permutation distribution therefore holds whatever the
    correlation inside a cluster. Source: Mantel and Haenszel 1959, JNCI 22, 719-748; Fisher's randomisation test.
    """
    lower = given.candidate_lower + given.stock_lower
    ties = given.candidate_ties + given.stock_ties
    total = ties.sum(axis=-2, keepdims=True)
    share = lower.sum(axis=-2, keepdims=True) / np.where(total > 0, total, 1.0)
    candidate = given.candidate_lower - share * given.candidate_ties
    contribution = (candidate - (given.stock_lower - share * given.stock_ties)).sum(axis=-1)
    contribution = np.atleast_2d(contribution)  # [M, K]
    observed = contribution.sum(axis=1)
    permuted = flips @ contribution.T  # [F, M]
    tolerance = 1e-9 * (1 + np.abs(contribution).sum(axis=1))
    p_value = (1 + (permuted >= observed - tolerance).sum(axis=0)) / (1 + len(flips))
    return Symmetry(
        p_value=p_value,
        candidate_share=_share(given.candidate_lower, given.candidate_ties),
        stock_share=_share(given.stock_lower, given.stock_ties),
    )


def _share(lower: FloatArray, ties: FloatArray) -> FloatArray:
    total = ties.sum(axis=(-2, -1))
    return np.atleast_1d(lower.sum(axis=(-2, -1)) / np.where(total > 0, total, 1.0))
