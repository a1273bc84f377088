"""Lossless runs made from calibration: stock against stock, judged with the checks' own arithmetic, many at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import Arm, BoolArray, IntArray, Thresholds
from lossguard.checks.bootstrap_t import cluster_weights
from lossguard.checks.bounds import Comparison, paired_bounds
from lossguard.checks.bucket_tests import rate_excess, rate_p_values
from lossguard.checks.buckets import BUCKET_Q, MINIMUM_MISMATCHES
from lossguard.checks.burst import request_counts
from lossguard.checks.burst_finding import BurstInput, find_bursts
from lossguard.checks.clusters import MINIMUM_CLUSTERS, cluster_of_requests
from lossguard.checks.multiplicity import adjusted_p_values
from lossguard.checks.near_tie import ASYMMETRY_ALPHA, FAIL_ALPHA, PASS_ALPHA
from lossguard.checks.rate import rate_bounds
from lossguard.checks.replicate_columns import (
    BUCKETS,
    GAPS,
    HITS,
    MISMATCHES,
    TOKENS,
    Drawn,
    RequestsOfClusters,
    columns_of_arms,
)
from lossguard.checks.seeds import stream_seed
from lossguard.checks.symmetry import sign_flips, symmetry_test
from lossguard.records import Request

_NUM_RESAMPLES = 2000
_NUM_FLIPS = 4000
_NUM_FITS = 50
_CHUNK = 50  # runs judged together: bounds memory


@dataclass(frozen=True, slots=True, kw_only=True)
class LosslessInput:
    """Both calibration services of stock, and how many runs of how many requests to make of them."""

    requests: Sequence[Request]
    stock: Arm
    recomposed: Arm
    thresholds: Thresholds
    num_requests: int
    seed: int
    num_replicates: int
    num_clusters: int | None = None  # of the runs' prompts; None: as many for each request as calibration has


@dataclass(frozen=True, slots=True, kw_only=True)
class LosslessResult:
    """[R] verdicts of the made runs; events, structure, vacuity and scores count as they would: PASS."""

    passed_by_check: Mapping[str, BoolArray]
    failed_by_check: Mapping[str, BoolArray]
    num_clusters: int

    @property
    def passed(self) -> BoolArray:
        """[R] every check passes."""
        return np.asarray(np.logical_and.reduce(list(self.passed_by_check.values())))

    @property
    def failed(self) -> BoolArray:
        """[R] a check fails."""
        return np.asarray(np.logical_or.reduce(list(self.failed_by_check.values())))


def judge_replicates(given: LosslessInput) -> LosslessResult:
    """Draw clusters with replacement to the run's number, exchange arms at random, judge.

    Exchanging makes both arms the same system by construction, so that every red verdict is a false alarm.
    """
    cluster = cluster_of_requests(given.requests)
    num_own = int(cluster.max()) + 1
    num_clusters = given.num_clusters or max(round(given.num_requests * num_own / len(given.requests)), 1)
    generator = np.random.default_rng(stream_seed(given.seed, "lossless replicates"))
    size = (given.num_replicates, num_clusters)
    drawn, exchanged = generator.integers(0, num_own, size=size), generator.integers(0, 2, size=size)
    arms = (given.recomposed, given.stock)
    columns = columns_of_arms(given.requests, arms, given.thresholds, given.seed)
    parts = []
    for start in range(0, given.num_replicates, _CHUNK):
        rows, sides = drawn[start : start + _CHUNK], exchanged[start : start + _CHUNK]
        runs = Drawn(candidate=columns[sides, rows], stock=columns[1 - sides, rows])
        parts.append({**_rate(runs, given), **_near_tie(runs, given), **_buckets(runs, given.thresholds.margin)})
    verdicts = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
    verdicts["burst"] = _burst(given, cluster, drawn, exchanged)
    allowed = {name: name not in given.thresholds.problems for name in (*verdicts, "event")}
    verdicts["event"] = np.array([[True], [False]]).repeat(given.num_replicates, axis=1)
    return LosslessResult(
        passed_by_check={name: passed & allowed[name] for name, (passed, _) in verdicts.items()},
        failed_by_check={name: failed & allowed[name] for name, (_, failed) in verdicts.items()},
        num_clusters=num_clusters,
    )


def _rate(runs: Drawn, given: LosslessInput) -> dict[str, BoolArray]:
    sums = runs.pair(MISMATCHES, TOKENS)
    weights = cluster_weights(sums.num_clusters, _NUM_RESAMPLES, stream_seed(given.seed, "rate"))
    bounds = rate_bounds(sums, weights)
    passed = bounds.passes(given.thresholds.margin) & (sums.num_clusters >= MINIMUM_CLUSTERS)
    return {"rate": np.stack([passed, bounds.fails(given.thresholds.margin)])}


def _near_tie(runs: Drawn, given: LosslessInput) -> dict[str, BoolArray]:
    sums = runs.pair(GAPS, TOKENS)
    seed = stream_seed(given.seed, "near-tie")
    weights = cluster_weights(sums.num_clusters, _NUM_RESAMPLES, seed)
    comparison = Comparison(sums=sums, hits=runs.pair(HITS, TOKENS), largest_value=given.thresholds.delta_max_nats)
    bounds = paired_bounds(comparison, weights)
    symmetry = symmetry_test(runs.ties(), sign_flips(sums.num_clusters, seed, _NUM_FLIPS))
    budget, asymmetric = given.thresholds.near_tie_budget_nats, symmetry.p_value <= ASYMMETRY_ALPHA
    passed = (bounds.upper(PASS_ALPHA) <= budget) & ~asymmetric & (sums.num_clusters >= MINIMUM_CLUSTERS)
    return {"near-tie": np.stack([passed, (bounds.lower(FAIL_ALPHA) > budget) | asymmetric])}


def _buckets(runs: Drawn, margin: float) -> dict[str, BoolArray]:
    """Rates only: events count as explained, but their tests stay in the family, as p = 1."""
    num_runs, number = len(runs.candidate), runs.num_buckets
    if number == 0:
        return {"buckets": np.stack([np.ones(num_runs, np.bool_), np.zeros(num_runs, np.bool_)])}
    pairs = [runs.pair(BUCKETS + 2 * index, BUCKETS + 2 * index + 1) for index in range(number)]
    p_values = np.stack([rate_p_values(pair) for pair in pairs], axis=1)
    adjusted = adjusted_p_values(np.concatenate([p_values, np.ones_like(p_values)], axis=1))[:, :number]
    enough = np.stack([pair.candidate.sum(axis=1) >= MINIMUM_MISMATCHES for pair in pairs], axis=1)
    over = np.stack([rate_excess(pair) > margin for pair in pairs], axis=1)
    failed = ((adjusted <= BUCKET_Q) & enough & over).any(axis=1)
    return {"buckets": np.stack([~failed, failed])}


def _burst(given: LosslessInput, cluster: IntArray, drawn: IntArray, exchanged: IntArray) -> BoolArray:
    calibration = request_counts(given.stock, given.thresholds)
    requests = RequestsOfClusters(
        members=tuple(np.flatnonzero(cluster == index) for index in range(int(cluster.max()) + 1)),
        counts=(request_counts(given.recomposed, given.thresholds), calibration),
    )
    failed = np.zeros(len(drawn), dtype=np.bool_)
    for run, (clusters, sides) in enumerate(zip(drawn, exchanged, strict=True)):
        candidate, stock, owner = requests.drawn(clusters, sides)
        failed[run] = find_bursts(
            BurstInput(
                candidate=candidate,
                stock=stock,
                calibration=calibration,
                cluster=owner,
                seed=stream_seed(given.seed, f"burst {run}"),
                num_fits=_NUM_FITS,
            )
        ).fails
    return np.stack([~failed, failed])
