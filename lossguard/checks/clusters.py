"""Clusters: one prompt with all its repeats and both arms. They, not tokens, are the unit of every variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from lossguard.checks.base import FloatArray, IntArray
from lossguard.records import ForcedScores, Request

MINIMUM_CLUSTERS = 200
"""Fewer can FAIL, never PASS."""


def cluster_of_requests(requests: Sequence[Request]) -> IntArray:
    """[R] index of each request's cluster, numbered in the order of first appearance."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(request.cluster, len(numbers)) for request in requests], dtype=np.int64)


def request_of_tokens(scores: ForcedScores) -> IntArray:
    """[T] index of the request that each token belongs to."""
    lengths = np.diff(scores.offsets)
    return np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)


def position_of_tokens(scores: ForcedScores) -> IntArray:
    """[T] position of each token in its reply, from 0."""
    starts = np.repeat(scores.offsets[:-1], np.diff(scores.offsets))
    return np.arange(scores.num_tokens, dtype=np.int64) - starts


def request_sums(values: np.ndarray, scores: ForcedScores) -> FloatArray:
    """[R] sum of a per-token column over each request (0 for an empty reply)."""
    num_requests = len(scores.offsets) - 1
    weights = np.asarray(values, dtype=np.float64)
    return np.asarray(np.bincount(request_of_tokens(scores), weights=weights, minlength=num_requests), dtype=np.float64)


def sum_by_cluster(values: np.ndarray, cluster: IntArray) -> FloatArray:
    """[K] sum of a per-request column over each cluster."""
    num_clusters = int(cluster.max()) + 1 if cluster.size else 0
    weights = np.asarray(values, dtype=np.float64)
    return np.asarray(np.bincount(cluster, weights=weights, minlength=num_clusters), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedSums:
    """Per-cluster sums and token counts of both arms, one comparison [K] or many [M, K]."""

    candidate: FloatArray
    candidate_tokens: FloatArray
    stock: FloatArray
    stock_tokens: FloatArray

    @property
    def num_clusters(self) -> int:
        """K."""
        return int(self.candidate.shape[-1])

    def swapped(self) -> Self:
        """The same comparison with the arms exchanged."""
        return type(self)(
            candidate=self.stock,
            candidate_tokens=self.stock_tokens,
            stock=self.candidate,
            stock_tokens=self.candidate_tokens,
        )

    def as_many(self) -> Self:
        """With a leading axis of comparisons: [1, K] if there was none."""
        return type(self)(
            candidate=np.atleast_2d(self.candidate),
            candidate_tokens=np.atleast_2d(self.candidate_tokens),
            stock=np.atleast_2d(self.stock),
            stock_tokens=np.atleast_2d(self.stock_tokens),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenColumn:
    """One value per served token of an arm, with the scores that say which request each token belongs to."""

    scores: ForcedScores
    values: np.ndarray  # [T]


def paired_sums(cluster: IntArray, candidate: TokenColumn, stock: TokenColumn) -> PairedSums:
    """Per-cluster sums [K] of one column per arm; ``cluster`` [R] is that of each request, the same for both."""
    return PairedSums(
        candidate=sum_by_cluster(request_sums(candidate.values, candidate.scores), cluster),
        candidate_tokens=sum_by_cluster(np.diff(candidate.scores.offsets), cluster),
        stock=sum_by_cluster(request_sums(stock.values, stock.scores), cluster),
        stock_tokens=sum_by_cluster(np.diff(stock.scores.offsets), cluster),
    )
