"""The near-tie check: a budget for the mean gap, so that what delta forgives token by token cannot add up."""

from __future__ import annotations

from collections.abc import Sequence

from lossguard.checks.base import CheckInput
from lossguard.checks.bootstrap_t import cluster_weights
from lossguard.checks.bounds import NUM_RESAMPLES, Bounds, paired_bounds
from lossguard.checks.clusters import MINIMUM_CLUSTERS, cluster_of_requests
from lossguard.checks.near_tie_comparison import near_tie_comparison
from lossguard.checks.problems import all_greedy, blocked
from lossguard.checks.seeds import stream_seed
from lossguard.checks.symmetry import Symmetry, TieCounts, sign_flips, symmetry_test, tie_counts
from lossguard.checks.table_text import finite, nats_per_token
from lossguard.records import CheckResult, Request, Verdict

PASS_ALPHA = 0.05
FAIL_ALPHA = 0.005
ASYMMETRY_ALPHA = 0.005


class NearTieCheck:
    """Mean clipped gap over all tokens, and symmetry inside ties.

    Covered: small biases that never exceed delta, such as always picking the lower-ranked of two near-tied tokens.
    Not covered: biases whose mean stays inside stock's own shift between batch compositions.
    """

    name: str = "near-tie"
    covers: str = "biases among near-tied tokens, too small for any single token to count"
    does_not_cover: str = "biases within stock's own shift between batch compositions"

    def applies(self, requests: Sequence[Request]) -> bool:
        """Greedy requests only."""
        return all_greedy(requests)

    def run(self, given: CheckInput) -> CheckResult:
        """FAIL by the 99.5 % lower bound or by asymmetry, PASS by the 95 % upper bound with at least 200 clusters."""
        if (refusal := blocked(self.name, given)) is not None:
            return refusal
        comparison = near_tie_comparison(given.requests, given.candidate.scores, given.stock.scores, given.thresholds)
        num_clusters = comparison.sums.num_clusters
        seed = stream_seed(given.seed, self.name)
        bounds = paired_bounds(comparison, cluster_weights(num_clusters, NUM_RESAMPLES, seed))
        symmetry = symmetry_test(tie_counts_of_arms(given), sign_flips(num_clusters, seed))
        return _result(given, bounds, symmetry, num_clusters)


def tie_counts_of_arms(given: CheckInput) -> TieCounts:
    """Ties and lower-ranked picks of both arms."""
    cluster = cluster_of_requests(given.requests)
    candidate = tie_counts(given.candidate.scores, given.thresholds, cluster)
    stock = tie_counts(given.stock.scores, given.thresholds, cluster)
    return TieCounts(
        candidate_lower=candidate[0], candidate_ties=candidate[1], stock_lower=stock[0], stock_ties=stock[1]
    )


def _verdict(upper: float, lower: float, budget: float, p_value: float, num_clusters: int) -> Verdict:
    asymmetric = not p_value > ASYMMETRY_ALPHA
    if lower > budget or asymmetric:
        return Verdict.FAIL
    return Verdict.PASS if upper <= budget and num_clusters >= MINIMUM_CLUSTERS else Verdict.INCONCLUSIVE


def _result(given: CheckInput, bounds: Bounds, symmetry: Symmetry, num_clusters: int) -> CheckResult:
    budget = given.thresholds.near_tie_budget_nats
    excess, upper = float(bounds.estimate[0]), float(bounds.upper(PASS_ALPHA)[0])
    lower, p_value = float(bounds.lower(FAIL_ALPHA)[0]), float(symmetry.p_value[0])
    verdict = _verdict(upper, lower, budget, p_value, num_clusters)
    shape = "symmetric" if p_value > ASYMMETRY_ALPHA else "asymmetric"
    notes: tuple[str, ...] = ()
    if verdict is Verdict.INCONCLUSIVE:
        notes = (f"upper bound {nats_per_token(upper)} over {num_clusters} clusters: needs more prompts to decide",)
    return CheckResult(
        check="near-tie",
        verdict=verdict,
        summary=f"{nats_per_token(excess)}, budget {budget:.5f}; {shape} p={p_value:.2g}",
        candidate=nats_per_token(excess),
        bound=nats_per_token(upper),
        limit=nats_per_token(budget),
        evidence={
            "excess_nats_per_token": finite(excess),
            "upper_95_nats_per_token": finite(upper),
            "lower_995_nats_per_token": finite(lower),
            "budget_nats_per_token": budget,
            "asymmetry_p": p_value,
            "candidate_lower_ranked_share": float(symmetry.candidate_share[0]),
            "stock_lower_ranked_share": float(symmetry.stock_share[0]),
            "num_clusters": num_clusters,
        },
        notes=notes,
    )
