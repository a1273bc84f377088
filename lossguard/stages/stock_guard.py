"""Is stock, and is the scorer, still what thresholds were learned from? Every check compares the candidate one-sidedly
with stock, so code in this process that ruins both arms alike (a patched kernel, a patched scorer) would pass them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lossguard.checks.base import Arm, Thresholds
from lossguard.checks.clusters import cluster_of_requests, request_sums, sum_by_cluster
from lossguard.checks.delta import is_mismatch
from lossguard.checks.events import unaudited_events
from lossguard.config import SystemConfig
from lossguard.records import ForcedScores, Request
from lossguard.stages.calibration import Calibration
from lossguard.stages.canaries import score_canaries
from lossguard.stages.workspace import Workspace

LEAST_NATS = 1e-3  # differences of a float32 scorer between batches are far smaller
CHANGED_SHARE = 0.05  # of tokens whose scores may differ by more than the noise
Z_999 = 3.0902  # one-sided 99.9 %
RATE_FACTOR, RATE_FLOOR = 4.0, 0.01
EVENT_SHARE, LEAST_EVENTS = 0.1, 5
SCORED_CHECKS = ("rate", "burst", "event", "near-tie", "parameters", "vacuity")


def guarded_thresholds(
    workspace: Workspace, system: SystemConfig, calibration: Calibration, test: tuple[Sequence[Request], Arm]
) -> Thresholds:
    """The frozen thresholds, with a problem for each check that must be INCONCLUSIVE in this case.

    ``test`` is the requests and stock, scored beside the candidate ``system``. A scorer that changed blocks every
    check that reads scores; a stock that is not the calibrated one blocks a PASS and leaves a FAIL.
    """
    changed = scorer_problem(workspace, system, calibration)
    drift = stock_problem(*test, calibration.thresholds)
    problems = dict.fromkeys(SCORED_CHECKS, changed) if changed else {"vacuity": drift} if drift else {}
    return replace(calibration.thresholds, problems={**problems, **calibration.thresholds.problems})


def scorer_problem(workspace: Workspace, system: SystemConfig, calibration: Calibration) -> str:
    """Score the canaries again, after the candidate ran here; what changed, or nothing."""
    before = calibration.canaries
    again = score_canaries(workspace, calibration.requests, calibration.stock, system=system.name)
    if before is None or again is None:
        workspace.note("the scorer is not compared with calibration: this run kept no scores for that")
        return ""
    share = changed_share(before, again, calibration.thresholds)
    if share <= CHANGED_SHARE:
        return ""
    return (
        f"the scorer changed since calibration: {share:.0%} of the tokens in {len(before.request_ids)} of stock's "
        f"calibration replies score differently after {system.name} ran; judge it in a process of its own"
    )


def changed_share(before: ForcedScores, again: ForcedScores, thresholds: Thresholds) -> float:
    """Share of tokens whose gap, best logit or logprob differs by more than the noise, or that are no longer finite."""
    if before.num_tokens == 0:
        return 0.0
    tolerance = max(4 * thresholds.q_nats, thresholds.delta_median_nats, LEAST_NATS)
    is_changed = before.finite != again.finite
    both = before.finite & again.finite & np.isfinite(before.gap) & np.isfinite(again.gap)
    for name in ("gap", "best_logit", "logprob"):
        difference = getattr(before, name)[both].astype(np.float64) - getattr(again, name)[both]
        is_changed[both] |= ~(np.abs(difference) <= tolerance)
    is_changed |= np.isfinite(before.gap) != np.isfinite(again.gap)
    return float(np.mean(is_changed))


def stock_problem(requests: Sequence[Request], stock: Arm, thresholds: Thresholds) -> str:
    """Stock's test replies against its calibration: a far higher mismatch rate, or events in many requests."""
    if stock.scores.num_tokens == 0 or not all(request.sampling.is_greedy for request in requests):
        return ""
    rate, lower = _rate_and_lower_bound(requests, stock, thresholds)
    limit = max(RATE_FACTOR * thresholds.stock_rate, RATE_FLOOR)
    if lower > limit:
        return f"stock is not what was calibrated: {rate:.2%} of its tokens mismatch, {thresholds.stock_rate:.2%} did"
    num_events = len(unaudited_events(stock, thresholds))
    if num_events >= LEAST_EVENTS and num_events > EVENT_SHARE * len(requests):
        return f"stock is not what was calibrated: events in {num_events} of its {len(requests)} test replies"
    return ""


def _rate_and_lower_bound(requests: Sequence[Request], stock: Arm, thresholds: Thresholds) -> tuple[float, float]:
    """The rate and its 99.9 % lower bound: the ratio estimator's linearised variance over prompts."""
    scores, cluster = stock.scores, cluster_of_requests(requests)
    hits = sum_by_cluster(request_sums(is_mismatch(scores, thresholds), scores), cluster)
    tokens = sum_by_cluster(np.diff(scores.offsets), cluster)
    rate = float(hits.sum() / tokens.sum())
    residuals = hits - rate * tokens
    error = float(np.sqrt((residuals**2).sum() * len(hits) / max(1, len(hits) - 1))) / float(tokens.sum())
    return rate, rate - Z_999 * error
