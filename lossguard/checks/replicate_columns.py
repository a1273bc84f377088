"""What the checks sum, by calibration cluster, so that runs can be made by drawing clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import Arm, CheckInput, FloatArray, IntArray, Thresholds
from lossguard.checks.bucket_masks import Bucket, buckets
from lossguard.checks.burst_finding import RequestCounts
from lossguard.checks.clusters import PairedSums, cluster_of_requests, request_sums, sum_by_cluster
from lossguard.checks.delta import clipped_gap, is_mismatch
from lossguard.checks.symmetry import NUM_BINS, TieCounts, tie_counts
from lossguard.records import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Both arms' sums of many drawn runs: [M, K, S], columns as ``columns_of_arm`` lays them out."""

    candidate: FloatArray
    stock: FloatArray

    def pair(self, sums: int, tokens: int) -> PairedSums:
        """[M, K] of one column, over the tokens of another."""
        return PairedSums(
            candidate=self.candidate[..., sums],
            candidate_tokens=self.candidate[..., tokens],
            stock=self.stock[..., sums],
            stock_tokens=self.stock[..., tokens],
        )

    def ties(self) -> TieCounts:
        """Of the symmetry test."""
        lower, ties = slice(TIES, TIES + NUM_BINS), slice(TIES + NUM_BINS, BUCKETS)
        return TieCounts(
            candidate_lower=self.candidate[..., lower],
            candidate_ties=self.candidate[..., ties],
            stock_lower=self.stock[..., lower],
            stock_ties=self.stock[..., ties],
        )

    @property
    def num_buckets(self) -> int:
        """Buckets whose mismatches and tokens follow column ``BUCKETS``."""
        return int(self.candidate.shape[-1] - BUCKETS) // 2


MISMATCHES, TOKENS, GAPS, HITS, TIES = 0, 1, 2, 3, 4
BUCKETS = TIES + 2 * NUM_BINS


def columns_of_arms(
    requests: Sequence[Request], arms: tuple[Arm, Arm], thresholds: Thresholds, seed: int
) -> FloatArray:
    """[2, K, S] per-cluster sums of both services of stock; telemetry buckets are left out."""
    given = CheckInput(
        requests=requests,
        candidate=arms[0],
        stock=arms[1],
        thresholds=thresholds,
        calibration_requests=requests,
        calibration=arms[1],
        expect={},
        vocab_size=0,
        seed=seed,
    )
    found = [bucket for bucket in buckets(given) if bucket.stock is not None]
    cluster = cluster_of_requests(requests)
    return np.stack([_columns(arm, thresholds, cluster, _masks(found, side)) for side, arm in enumerate(arms)])


def _masks(found: Sequence[Bucket], side: int) -> list[np.ndarray]:
    return [np.asarray(bucket.candidate if side == 0 else bucket.stock) for bucket in found]


def _columns(arm: Arm, thresholds: Thresholds, cluster: IntArray, masks: Sequence[np.ndarray]) -> FloatArray:
    wrong, gap = is_mismatch(arm.scores, thresholds), clipped_gap(arm.scores, thresholds)
    by_token = [wrong, np.ones(arm.scores.num_tokens), gap, gap > 0]
    in_buckets = [column for mask in masks for column in (wrong & mask, mask)]
    sums = [sum_by_cluster(request_sums(column, arm.scores), cluster) for column in (*by_token, *in_buckets)]
    lower, ties = tie_counts(arm.scores, thresholds, cluster)
    head, tail = np.stack(sums[: len(by_token)], axis=1), sums[len(by_token) :]
    parts = [head, lower, ties]
    return np.concatenate([*parts, np.stack(tail, axis=1)] if tail else parts, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsOfClusters:
    """Which calibration requests make up each cluster, for the checks that look at single requests."""

    members: tuple[IntArray, ...]
    counts: tuple[RequestCounts, RequestCounts]  # of both services

    def drawn(self, clusters: IntArray, exchanged: IntArray) -> tuple[RequestCounts, RequestCounts, IntArray]:
        """Counts of both arms of one drawn run, and the drawn cluster of each request."""
        rows = np.concatenate([self.members[index] for index in clusters])
        sizes = np.array([len(self.members[index]) for index in clusters])
        side = np.repeat(exchanged, sizes)
        mismatches = np.stack([counts.mismatches for counts in self.counts])
        tokens = np.stack([counts.tokens for counts in self.counts])
        arms = [
            RequestCounts(mismatches=mismatches[which, rows], tokens=tokens[which, rows]) for which in (side, 1 - side)
        ]
        return arms[0], arms[1], np.repeat(np.arange(len(clusters)), sizes)
