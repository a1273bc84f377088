from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from lossguard.checks.base import Arm
from lossguard.checks.near_tie import NearTieCheck
from lossguard.checks.symmetry import NUM_BINS, TieCounts, sign_flips, symmetry_test, tie_counts
from lossguard.records import Verdict, require_finite
from tests.checks.conftest import LosslessRun
from tests.checks.simulated_arms import make_scores, thresholds


def flipping(arm: Arm, share: float) -> Arm:
    """The arm picking the lower-ranked token in that share of its ties."""
    scores = arm.scores
    gap = scores.top_logits[:, 0] - scores.top_logits[:, 1]
    flip = (gap <= 0.0625) & (np.random.default_rng(2).random(len(gap)) < share)
    return replace(arm, scores=replace(scores, gap=np.where(flip, gap, scores.gap).astype(np.float32)))


def test_a_lossless_candidate_passes(lossless: LosslessRun) -> None:
    result = NearTieCheck().run(lossless.given)
    assert result.verdict is Verdict.PASS
    assert "symmetric p=" in result.summary
    assert result.summary.count("nats/token") == 1
    require_finite(result.to_json())


def test_flipping_every_tie_fails_by_budget_and_by_asymmetry(lossless: LosslessRun) -> None:
    result = NearTieCheck().run(replace(lossless.given, candidate=flipping(lossless.given.candidate, 1.0)))
    assert result.verdict is Verdict.FAIL
    assert result.evidence["lower_995_nats_per_token"] > result.evidence["budget_nats_per_token"]
    assert result.evidence["asymmetry_p"] < 0.001


def test_a_bias_inside_the_budget_still_fails_by_asymmetry(lossless: LosslessRun) -> None:
    result = NearTieCheck().run(replace(lossless.given, candidate=flipping(lossless.given.candidate, 0.25)))
    assert result.evidence["lower_995_nats_per_token"] < result.evidence["budget_nats_per_token"]
    assert result.verdict is Verdict.FAIL


def test_fewer_lower_ranked_picks_than_stock_are_no_fault(lossless: LosslessRun) -> None:
    scores = lossless.given.candidate.scores
    always_best = replace(
        lossless.given.candidate, scores=replace(scores, gap=np.zeros_like(scores.gap), rank=np.zeros_like(scores.rank))
    )
    assert NearTieCheck().run(replace(lossless.given, candidate=always_best)).verdict is Verdict.PASS


def test_a_budget_too_small_to_reach_is_inconclusive(lossless: LosslessRun) -> None:
    limits = replace(lossless.thresholds, near_tie_budget_nats=1e-5)
    assert NearTieCheck().run(replace(lossless.given, thresholds=limits)).verdict is Verdict.INCONCLUSIVE


def test_under_200_clusters_it_never_passes(lossless: LosslessRun) -> None:
    requests = [replace(request, cluster=f"p{index % 199}") for index, request in enumerate(lossless.given.requests)]
    assert NearTieCheck().run(replace(lossless.given, requests=requests)).verdict is Verdict.INCONCLUSIVE


def test_ties_are_counted_by_bin_and_cluster() -> None:
    gap = np.array([0.01, 0.0, 0.0, 0.05, 0.0, 0.2])
    second = np.array([0.01, 0.02, 0.0625, 0.05, 0.07, 0.2])
    scores = make_scores(gap, np.array([0, 3, 6]), ["a", "b"], second)
    lower, ties = tie_counts(scores, thresholds(), np.array([0, 1]))
    assert ties.tolist() == [[1, 1, 0, 1], [0, 0, 0, 1]]
    assert lower.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]


def random_ties(num_clusters: int, seed: int) -> TieCounts:
    generator = np.random.default_rng(seed)
    ties = generator.integers(0, 4, size=(2, num_clusters, NUM_BINS)).astype(np.float64)
    lower = generator.binomial(ties.astype(int), 0.3).astype(np.float64)
    return TieCounts(candidate_lower=lower[0], candidate_ties=ties[0], stock_lower=lower[1], stock_ties=ties[1])


@pytest.mark.parametrize("seed", range(5))
def test_the_statistic_only_changes_sign_where_a_cluster_exchanges_its_arms(seed: int) -> None:
    """The p-value from signs equals the one from exchanging arms and recomputing the Mantel-Haenszel difference."""
    given = random_ties(6, seed)

    def mantel_haenszel(exchange: tuple[int, ...]) -> float:
        side = np.array(exchange)[:, None] == 1
        parts = [
            np.where(side, second, first).sum(axis=0)
            for first, second in (
                (given.candidate_lower, given.stock_lower),
                (given.candidate_ties, given.stock_ties),
                (given.stock_lower, given.candidate_lower),
                (given.stock_ties, given.candidate_ties),
            )
        ]
        total = np.maximum(parts[1] + parts[3], 1)
        return float(((parts[0] * parts[3] - parts[2] * parts[1]) / total).sum())

    all_exchanges = list(product((0, 1), repeat=6))
    observed = mantel_haenszel((0,) * 6)
    expected = np.mean([mantel_haenszel(exchange) >= observed - 1e-9 for exchange in all_exchanges])
    signs = np.array([[1.0 - 2 * bit for bit in exchange] for exchange in all_exchanges])
    p_value = symmetry_test(given, signs).p_value[0]
    assert p_value == pytest.approx((1 + 64 * expected) / 65)


def test_symmetry_holds_its_level() -> None:
    generator = np.random.default_rng(0)
    ties = generator.poisson(0.4, size=(2, 400, 240, NUM_BINS)).astype(np.float64)
    share = generator.beta(1, 3, size=(1, 400, 240, 1))
    lower = generator.binomial(ties.astype(int), np.broadcast_to(share, ties.shape)).astype(np.float64)
    given = TieCounts(candidate_lower=lower[0], candidate_ties=ties[0], stock_lower=lower[1], stock_ties=ties[1])
    p_values = symmetry_test(given, sign_flips(240, 1, 2000)).p_value
    assert (p_values <= 0.05).mean() == pytest.approx(0.05, abs=0.033)
