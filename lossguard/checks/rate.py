"""The rate check: does the candidate mismatch more often than stock, beyond the margin?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import CheckInput, FloatArray
from lossguard.checks.bootstrap_t import cluster_weights
from lossguard.checks.bounds import NUM_RESAMPLES, Bounds, Comparison, paired_bounds
from lossguard.checks.clusters import MINIMUM_CLUSTERS, PairedSums, TokenColumn, cluster_of_requests, paired_sums
from lossguard.checks.delta import is_mismatch
from lossguard.checks.problems import all_greedy, blocked
from lossguard.checks.proportions import score_upper
from lossguard.checks.seeds import stream_seed
from lossguard.checks.table_text import finite, percent, plural, points
from lossguard.records import CheckResult, Request, Verdict

PASS_ALPHA = 0.05
FAIL_ALPHA = 0.01
_POWER_Z = 1.6449 + 1.2816  # one-sided 5 % and 90 % power


@dataclass(frozen=True, slots=True, kw_only=True)
class RateBounds:
    """What the verdict rests on, for M comparisons at once."""

    estimate: FloatArray  # [M] candidate minus stock, a fraction of tokens
    standard_error: FloatArray
    upper: FloatArray  # the larger of both 95 % bounds below
    bootstrap_upper: FloatArray
    guard_upper: FloatArray  # Rao-Scott Miettinen-Nurminen
    lower: FloatArray  # 99 %

    def passes(self, margin: float | FloatArray) -> np.ndarray:
        """[M] the upper bound lies under the margin."""
        return np.asarray(self.upper < margin)

    def fails(self, margin: float | FloatArray) -> np.ndarray:
        """[M] it does not, and the lower bound is over 0."""
        return np.asarray(~self.passes(margin) & (self.lower > 0))


def rate_bounds(sums: PairedSums, weights: FloatArray) -> RateBounds:
    """Bounds of the difference of rates from mismatch counts, [K] or [M, K]."""
    bounds: Bounds = paired_bounds(Comparison(sums=sums, hits=sums), weights)
    bootstrap, guard = bounds.upper(PASS_ALPHA), score_upper(bounds.effective, PASS_ALPHA)
    return RateBounds(
        estimate=bounds.estimate,
        standard_error=bounds.standard_error,
        upper=np.maximum(bootstrap, guard),
        bootstrap_upper=bootstrap,
        guard_upper=guard,
        lower=bounds.lower(FAIL_ALPHA),
    )


def mismatch_sums(given: CheckInput) -> PairedSums:
    """Mismatches and tokens of both arms by cluster."""
    columns = [
        TokenColumn(scores=arm.scores, values=is_mismatch(arm.scores, given.thresholds))
        for arm in (given.candidate, given.stock)
    ]
    return paired_sums(cluster_of_requests(given.requests), columns[0], columns[1])


class RateCheck:
    """Non-inferiority of the mismatch rate.

    Covered: faults that raise the rate of tokens with a gap over delta by more than the margin on average.
    Not covered: faults in few requests (burst), single large errors (event), choices inside delta (near-tie), and
    everything beside the choice of tokens.
    """

    name: str = "rate"
    covers: str = "more tokens that the target would not serve, on average over prompts"
    does_not_cover: str = "excesses under the margin; faults confined to few requests or positions"

    def applies(self, requests: Sequence[Request]) -> bool:
        """Greedy requests only: a sampled token is no mismatch."""
        return all_greedy(requests)

    def run(self, given: CheckInput) -> CheckResult:
        """PASS, FAIL or INCONCLUSIVE by the bounds; under 200 clusters never PASS."""
        if (refusal := blocked(self.name, given)) is not None:
            return refusal
        sums = mismatch_sums(given)
        weights = cluster_weights(sums.num_clusters, NUM_RESAMPLES, stream_seed(given.seed, self.name))
        bounds = rate_bounds(sums, weights)
        verdict = _verdict(bounds, given.thresholds.margin, sums.num_clusters)
        return _result(sums, bounds, given, verdict)


def _verdict(bounds: RateBounds, margin: float, num_clusters: int) -> Verdict:
    if bool(bounds.fails(margin)[0]):
        return Verdict.FAIL
    enough = num_clusters >= MINIMUM_CLUSTERS
    return Verdict.PASS if enough and bool(bounds.passes(margin)[0]) else Verdict.INCONCLUSIVE


def _result(sums: PairedSums, bounds: RateBounds, given: CheckInput, verdict: Verdict) -> CheckResult:
    margin, estimate, upper = given.thresholds.margin, float(bounds.estimate[0]), float(bounds.upper[0])
    rates = [
        float(total.sum() / tokens.sum())
        for total, tokens in ((sums.candidate, sums.candidate_tokens), (sums.stock, sums.stock_tokens))
    ]
    notes = _needed(sums, bounds, margin) if verdict is Verdict.INCONCLUSIVE else ()
    summary = f"{percent(rates[0])} against stock's {percent(rates[1])} of tokens mismatch"
    return CheckResult(
        check="rate",
        verdict=verdict,
        summary=f"{summary}; {notes[0]}" if notes else summary,
        candidate=percent(rates[0]),
        stock=percent(rates[1]),
        bound=points(upper),
        limit=points(margin),
        evidence={
            "candidate_rate": rates[0],
            "stock_rate": rates[1],
            "candidate_mismatches": int(sums.candidate.sum()),
            "stock_mismatches": int(sums.stock.sum()),
            "candidate_tokens": int(sums.candidate_tokens.sum()),
            "stock_tokens": int(sums.stock_tokens.sum()),
            "num_clusters": sums.num_clusters,
            "difference": finite(estimate),
            "standard_error": finite(bounds.standard_error[0]),
            "upper_95": finite(upper),
            "bootstrap_upper_95": finite(bounds.bootstrap_upper[0]),
            "guard_upper_95": finite(bounds.guard_upper[0]),
            "lower_99": finite(bounds.lower[0]),
            "margin": margin,
        },
        notes=notes,
    )


def _needed(sums: PairedSums, bounds: RateBounds, margin: float) -> tuple[str, ...]:
    """How much more would decide, were the true excess 0 and the spread as seen here (90 % power)."""
    num_clusters = sums.num_clusters
    tokens_per_cluster = float(sums.candidate_tokens.sum()) / num_clusters
    error = max(float(bounds.standard_error[0]), (float(bounds.upper[0]) - float(bounds.estimate[0])) / 1.6449)
    wanted = MINIMUM_CLUSTERS
    if math.isfinite(error) and margin > 0:
        wanted = max(wanted, math.ceil(num_clusters * (_POWER_Z * error / margin) ** 2))
    missing = wanted - num_clusters
    if missing <= 0:
        return (f"{num_clusters} clusters would usually decide; this excess is in between: repeat on other prompts",)
    tokens = math.ceil(missing * tokens_per_cluster)
    return (f"needs {plural(missing, 'more cluster')} (prompts), about {tokens:,} more tokens per system",)
