"""Simulated comparisons judged with the checks' own arithmetic, many at once; outcomes are counted.

``rate``, ``near-tie``, ``buckets`` and thresholds are vectorised over comparisons; ``burst`` runs comparison by
comparison where a quick look cannot exclude a flag. Structure, vacuity and scores pass by construction. Events are
simulated on their own (``event_row``), because a stock that was measured has next to none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import BoolArray, FloatArray
from lossguard.checks.beta_binomial import fit_by_moments, tails
from lossguard.checks.bootstrap_t import cluster_weights
from lossguard.checks.bounds import Comparison, paired_bounds
from lossguard.checks.bucket_masks import PROMPT_LENGTHS
from lossguard.checks.bucket_tests import rate_excess, rate_p_values
from lossguard.checks.buckets import BUCKET_Q, MINIMUM_MISMATCHES
from lossguard.checks.burst_finding import FLAG_Q, BurstInput, RequestCounts, find_bursts
from lossguard.checks.calibrate import is_usable_budget, margin_of_rate, near_tie_budget
from lossguard.checks.clusters import MINIMUM_CLUSTERS, PairedSums
from lossguard.checks.multiplicity import adjusted_p_values
from lossguard.checks.near_tie import ASYMMETRY_ALPHA
from lossguard.checks.near_tie import FAIL_ALPHA as NEAR_TIE_FAIL_ALPHA
from lossguard.checks.near_tie import PASS_ALPHA as NEAR_TIE_PASS_ALPHA
from lossguard.checks.rate import rate_bounds
from lossguard.checks.symmetry import TieCounts, sign_flips, symmetry_test
from lossguard.selftest.draw import ArmSums, Comparisons, shares_prompt_set, tokens_at
from lossguard.selftest.statistics import StockStatistics

NUM_RESAMPLES = 2000
NUM_FLIPS = 4000
NUM_FITS = 50
BURST_SHARE = 0.2
"""Of faulty comparisons, in which the burst check runs whatever the others say; it is slow where there are flags."""
QUICK_LOOK = 20.0
"""A comparison whose smallest adjusted p, without the fit's uncertainty, is over this many times q has no flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """[M] verdicts of each check, and whether each printed interval holds the truth."""

    passed: Mapping[str, BoolArray]
    failed: Mapping[str, BoolArray]
    covered: Mapping[str, BoolArray]
    num_burst: int  # the burst check ran on the first so many, and further where no other check fails

    def outcomes(self) -> dict[str, tuple[int, int]]:
        """(comparisons with the outcome, comparisons that tell) by outcome.

        Outcomes: PASS, FAIL, not PASS, ``CHECK PASS``, ``CHECK FAIL``, ``covers: INTERVAL``.
        """
        passed = np.logical_and.reduce(list(self.passed.values()))
        failed = np.logical_or.reduce(list(self.failed.values()))
        counted = {"PASS": passed, "FAIL": failed, "not PASS": ~passed}
        for verdict, by_check in (("PASS", self.passed), ("FAIL", self.failed)):
            for name, values in by_check.items():
                counted[f"{name} {verdict}"] = values[: self.num_burst] if name == "burst" else values
        counted |= {f"covers: {name}": inside for name, inside in self.covered.items()}
        return {name: (int(values.sum()), len(values)) for name, values in counted.items()}


def judge(given: Comparisons, statistics: StockStatistics, truth: float, seed: int) -> Judged:
    """Judge M comparisons whose candidate has a true excess of ``truth`` (a fraction of tokens)."""
    margin = _margin(given)
    rate = _rate(given, margin, truth, seed)
    near_tie = _near_tie(given, statistics, truth, seed + 1)
    bucket_failed = _buckets_failed(given, margin, statistics)
    failed = rate.failed | near_tie.failed | bucket_failed
    num_burst = max(round(len(failed) * BURST_SHARE), 1) if truth else len(failed)
    burst_failed = _burst_failed(given, ~failed | (np.arange(len(failed)) < num_burst), seed + 2)
    return Judged(
        passed={"rate": rate.passed, "near-tie": near_tie.passed, "burst": ~burst_failed, "buckets": ~bucket_failed},
        failed={"rate": rate.failed, "near-tie": near_tie.failed, "burst": burst_failed, "buckets": bucket_failed},
        covered={**rate.covered, **near_tie.covered},
        num_burst=num_burst,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdicts:
    passed: BoolArray
    failed: BoolArray
    covered: Mapping[str, BoolArray]


def _margin(given: Comparisons) -> FloatArray:
    arms = (given.calibration, given.recomposed)
    wrong = sum(arm.mismatches.sum(axis=1) for arm in arms)
    return margin_of_rate(wrong / sum(arm.tokens.sum(axis=1) for arm in arms))


def _rate(given: Comparisons, margin: FloatArray, truth: float, seed: int) -> _Verdicts:
    sums = _pair(given.candidate, given.stock, "mismatches")
    bounds = rate_bounds(sums, cluster_weights(sums.num_clusters, NUM_RESAMPLES, seed))
    passed = bounds.passes(margin) & (sums.num_clusters >= MINIMUM_CLUSTERS)
    covered = {
        "rate upper 95 %": bounds.upper >= truth,
        "rate bootstrap upper 95 %": bounds.bootstrap_upper >= truth,
        "rate guard upper 95 %": bounds.guard_upper >= truth,
        "rate lower 99 %": bounds.lower <= truth,
    }
    return _Verdicts(passed=passed, failed=bounds.fails(margin), covered=covered)


def _near_tie(given: Comparisons, statistics: StockStatistics, truth: float, seed: int) -> _Verdicts:
    largest = float(max(statistics.mismatch_delta.max(), statistics.tie_delta.max()))
    shift, flip_cost, covers_shift = _calibrated(given, largest, seed)
    budget = near_tie_budget(flip_cost, shift)
    sums = _pair(given.candidate, given.stock, "gaps")
    comparison = Comparison(sums=sums, hits=_pair(given.candidate, given.stock, "hits"), largest_value=largest)
    bounds = paired_bounds(comparison, cluster_weights(sums.num_clusters, NUM_RESAMPLES, seed))
    symmetric = ~(
        symmetry_test(_ties(given), sign_flips(sums.num_clusters, seed, NUM_FLIPS)).p_value <= ASYMMETRY_ALPHA
    )
    usable, enough = is_usable_budget(budget, flip_cost), sums.num_clusters >= MINIMUM_CLUSTERS
    upper, lower = bounds.upper(NEAR_TIE_PASS_ALPHA), bounds.lower(NEAR_TIE_FAIL_ALPHA)
    true_gap = truth * float(statistics.mismatch_delta.mean())
    return _Verdicts(
        passed=(upper <= budget) & symmetric & usable & enough,
        failed=((lower > budget) | ~symmetric) & usable,
        covered={
            "near-tie upper 95 %": upper >= true_gap,
            "near-tie lower 99.5 %": lower <= true_gap,
            "calibration shift 95 %": covers_shift,
        },
    )


def _calibrated(given: Comparisons, largest: float, seed: int) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Stock's shift between its services and its flip cost, [M] each, and whether the shift's upper bound is over 0."""
    sums = _pair(given.recomposed, given.calibration, "gaps")
    comparison = Comparison(sums=sums, hits=_pair(given.recomposed, given.calibration, "hits"), largest_value=largest)
    bounds = paired_bounds(comparison, cluster_weights(sums.num_clusters, NUM_RESAMPLES, seed))
    upper, lower = bounds.upper(0.05), bounds.lower(0.05)
    flip_cost = given.calibration.flip_costs.sum(axis=1) / given.calibration.tokens.sum(axis=1)
    return np.maximum(np.maximum(upper, -lower), 0.0), flip_cost, upper >= 0


def _ties(given: Comparisons) -> TieCounts:
    return TieCounts(
        candidate_lower=given.candidate.lower,
        candidate_ties=given.candidate.ties,
        stock_lower=given.stock.lower,
        stock_ties=given.stock.ties,
    )


def _pair(candidate: ArmSums, stock: ArmSums, column: str) -> PairedSums:
    return PairedSums(
        candidate=getattr(candidate, column),
        candidate_tokens=candidate.tokens,
        stock=getattr(stock, column),
        stock_tokens=stock.tokens,
    )


def _buckets_failed(given: Comparisons, margin: FloatArray, statistics: StockStatistics) -> BoolArray:
    """Rates only: their twins for events stay in the family as p = 1, as without events."""
    pairs = _bucket_pairs(given, statistics)
    p_values, can_fail = [], []
    for pair in pairs:
        inside = pair.candidate_tokens.sum(axis=1)
        used = (inside > 0) & (inside < given.candidate.tokens.sum(axis=1))
        p_values.append(np.where(used, rate_p_values(pair), np.nan))
        can_fail.append((pair.candidate.sum(axis=1) >= MINIMUM_MISMATCHES) & (rate_excess(pair) > margin))
    table = np.stack(p_values, axis=1)
    num_used = (~np.isnan(table)).sum(axis=1)
    # a bucket that is absent takes no place in its comparison's family
    family = np.concatenate([np.where(np.isnan(table), 1.0, table), np.ones_like(table)], axis=1)
    scale = 2 * num_used / family.shape[1]
    adjusted = adjusted_p_values(family)[:, : table.shape[1]] * scale[:, None]
    return np.asarray(((adjusted <= BUCKET_Q) & np.stack(can_fail, axis=1)).any(axis=1))


def _bucket_pairs(given: Comparisons, statistics: StockStatistics) -> list[PairedSums]:
    arms = (given.candidate, given.stock)
    sizes = [tokens_at(arm.tokens) for arm in arms]
    found = [
        _of(arms[0].mismatches_at[..., at], sizes[0][..., at], arms[1].mismatches_at[..., at], sizes[1][..., at])
        for at in range(sizes[0].shape[-1])
    ]
    lengths = statistics.prompt_length[given.prompts.row]
    masks = [(lengths >= low) & (lengths <= (np.inf if high is None else high)) for low, high in PROMPT_LENGTHS] + [
        shares_prompt_set(given.prompts, statistics, index) for index in range(len(statistics.sets))
    ]
    found += [_of(*(value * mask for arm in arms for value in (arm.mismatches, arm.tokens))) for mask in masks]
    ends = [(arm.tokens > 0).astype(np.float64) for arm in arms]
    return [*found, _of(arms[0].finish_mismatches, ends[0], arms[1].finish_mismatches, ends[1])]


def _of(candidate: FloatArray, candidate_tokens: FloatArray, stock: FloatArray, stock_tokens: FloatArray) -> PairedSums:
    return PairedSums(candidate=candidate, candidate_tokens=candidate_tokens, stock=stock, stock_tokens=stock_tokens)


def _burst_failed(given: Comparisons, wanted: BoolArray, seed: int) -> BoolArray:
    failed = np.zeros(len(given.candidate.tokens), dtype=np.bool_)
    for run in np.flatnonzero(may_flag(given) & wanted).tolist():
        failed[run] = find_bursts(
            BurstInput(
                candidate=_counts(given.candidate, run),
                stock=_counts(given.stock, run),
                calibration=_counts(given.calibration, run),
                cluster=np.arange(given.candidate.tokens.shape[1]),
                seed=seed + run,
                num_fits=NUM_FITS,
            )
        ).fails
    return failed


def _counts(arm: ArmSums, run: int) -> RequestCounts:
    return RequestCounts(mismatches=arm.mismatches[run], tokens=arm.tokens[run])


def may_flag(given: Comparisons) -> BoolArray:
    """[M] whether the burst check may flag a request of the candidate; a quick look at the fit itself excludes most."""
    hits = np.concatenate([given.calibration.mismatches, given.stock.mismatches], axis=1)
    trials = np.concatenate([given.calibration.tokens, given.stock.tokens], axis=1)
    p_values = tails(given.candidate.mismatches, given.candidate.tokens, fit_by_moments(hits, trials))
    return np.asarray(adjusted_p_values(p_values).min(axis=1) <= QUICK_LOOK * FLAG_Q)
