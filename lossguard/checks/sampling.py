"""The sampling check: are sampled tokens draws from the target's distribution, as stock's are?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from lossguard.checks.base import CheckInput
from lossguard.checks.bootstrap_t import bootstrap_t, cluster_weights
from lossguard.checks.bounds import MINIMUM_SPREAD_CLUSTERS, NUM_RESAMPLES
from lossguard.checks.clusters import MINIMUM_CLUSTERS, PairedSums, cluster_of_requests, request_sums, sum_by_cluster
from lossguard.checks.drawn_tokens import DrawnTokens, drawn_tokens, has_sampled_columns
from lossguard.checks.improbable import TAIL, ImprobableDraws, compare_improbable
from lossguard.checks.problems import blocked, inconclusive
from lossguard.checks.seeds import stream_seed
from lossguard.checks.table_text import finite, nats_per_token, plural
from lossguard.checks.transform import TransformComparison, compare_transforms, largest_spread
from lossguard.records import CheckResult, Request, Verdict

PASS_ALPHA: Final = 0.05
SURPRISE_ALPHA: Final = 0.001
"""Of each direction, so that 0.2 % of lossless runs fail by surprise at most."""
TRANSFORM_ALPHA: Final = 0.002
LEAST_MARGIN, LARGEST_MARGIN = 0.05, 0.10
"""Of the temperature: an error of it that a run must exclude to PASS."""
LEAST_TRANSFORM_MARGIN, LARGEST_TRANSFORM_MARGIN = 0.01, 0.025
"""Of probability: a difference of the distribution functions that a run must exclude to PASS."""
RESOLVED_ERRORS: Final = 4.0
RESOLVED_TRANSFORM_ERRORS: Final = 5.6
"""Standard errors of the difference that a margin takes for stock to pass against itself in 97 of 100 runs: the bound's
own and the chance difference's (of the transform both are of the largest of 19 edges)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurpriseComparison:
    """Mean surprise of the candidate minus stock's, nats per token, with bounds by cluster."""

    difference: float
    standard_error: float
    upper_95: float
    lower_95: float
    upper_fail: float  # at level 1 - SURPRISE_ALPHA
    lower_fail: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """All three comparisons of both arms."""

    surprise: SurpriseComparison
    transform: TransformComparison
    improbable: ImprobableDraws


class SamplingCheck:
    """Surprise (surprisal minus entropy) and probability integral transform of sampled tokens, against stock's.

    Surprise is over 0 where replies are drawn too hot, under 0 where too cold; the transform sees other shapes.
    Requests with a token that draws hardly ever give are counted, as events are in greedy replies.
    Covered: wrong temperatures, filters that nobody asked for, acceptance rules of speculative decoding that are not
    exact, drafts served as if drawn, a few wrong tokens.
    Not covered: which of equally likely tokens are drawn; draws that depend on each other, such as repeated replies.
    """

    name: str = "sampling"
    covers: str = "the distribution that sampled tokens are drawn from"
    does_not_cover: str = "draws that depend on each other, and errors within the margins"

    def applies(self, requests: Sequence[Request]) -> bool:
        """Requests of which one is sampled."""
        return any(not request.sampling.is_greedy for request in requests)

    def run(self, given: CheckInput) -> CheckResult:
        """FAIL by surprise or transform where a margin is not kept, PASS where both are, with at least 200 clusters."""
        if (refusal := blocked(self.name, given)) is not None:
            return refusal
        if not all(has_sampled_columns(arm.scores) for arm in (given.candidate, given.stock)):
            return inconclusive(self.name, "the scorer gives no distributions: sampled replies need one that does")
        candidate, stock = (drawn_tokens(given, arm) for arm in (given.candidate, given.stock))
        if not candidate.num_drawn or not stock.num_drawn:
            return inconclusive(self.name, "an arm has no token that the target could have drawn")
        if stock.mean_variance <= 0:
            return inconclusive(self.name, "every distribution has one token only: nothing was drawn")
        cluster = cluster_of_requests(given.requests)
        if int(cluster.max()) + 1 < MINIMUM_SPREAD_CLUSTERS:
            return inconclusive(self.name, f"fewer than {MINIMUM_SPREAD_CLUSTERS} clusters show no spread")
        seed = stream_seed(given.seed, self.name)
        surprise = compare_surprise(cluster, candidate, stock, seed)
        compared = Compared(
            surprise=surprise,
            transform=compare_transforms(cluster, candidate, stock, seed),
            improbable=compare_improbable(candidate, stock),
        )
        return _result(candidate, stock, compared, num_clusters=int(cluster.max()) + 1)


def compare_surprise(cluster: np.ndarray, candidate: DrawnTokens, stock: DrawnTokens, seed: int) -> SurpriseComparison:
    """Paired bootstrap-t by cluster of the mean surprise; ``cluster`` [R] is that of each request."""
    sums = [sum_by_cluster(request_sums(arm.surprise, arm.scores), cluster) for arm in (candidate, stock)]
    drawn = [sum_by_cluster(request_sums(arm.is_drawn, arm.scores), cluster) for arm in (candidate, stock)]
    paired = PairedSums(candidate=sums[0], candidate_tokens=drawn[0], stock=sums[1], stock_tokens=drawn[1])
    bootstrap = bootstrap_t(paired, cluster_weights(len(sums[0]), NUM_RESAMPLES, seed))
    return SurpriseComparison(
        difference=float(bootstrap.difference.estimate[0]),
        standard_error=float(bootstrap.difference.standard_error[0]),
        upper_95=float(bootstrap.upper(PASS_ALPHA)[0]),
        lower_95=float(bootstrap.lower(PASS_ALPHA)[0]),
        upper_fail=float(bootstrap.upper(SURPRISE_ALPHA)[0]),
        lower_fail=float(bootstrap.lower(SURPRISE_ALPHA)[0]),
    )


def temperature_margin(stock: DrawnTokens) -> float:
    """The error of the temperature to exclude, as a fraction: 5 %, or up to 10 % where this many tokens tell no less.

    A temperature off by the fraction e moves the mean surprise by e times the variance of the surprisal (the derivative
    of an exponential family's mean). From stock alone.
    """
    error = (2 / (stock.num_drawn * stock.mean_variance)) ** 0.5
    return float(np.clip(RESOLVED_ERRORS * error, LEAST_MARGIN, LARGEST_MARGIN))


def transform_margin(stock: DrawnTokens) -> float:
    """The difference of distribution functions to exclude: 1 point, or more in runs that tell no less. Stock alone."""
    error = largest_spread(stock) * (2 / stock.num_drawn) ** 0.5
    return float(np.clip(RESOLVED_TRANSFORM_ERRORS * error, LEAST_TRANSFORM_MARGIN, LARGEST_TRANSFORM_MARGIN))


def surprise_verdict(found: SurpriseComparison, margin: float, num_clusters: int) -> Verdict:
    """``margin`` in nats per token."""
    is_within = found.upper_95 < margin and found.lower_95 > -margin
    if not is_within and (found.lower_fail > 0 or found.upper_fail < 0):
        return Verdict.FAIL
    return Verdict.PASS if is_within and num_clusters >= MINIMUM_CLUSTERS else Verdict.INCONCLUSIVE


def transform_verdict(found: TransformComparison, margin: float, num_clusters: int) -> Verdict:
    """``margin`` as a share of probability."""
    is_within = found.upper(PASS_ALPHA) < margin
    if not is_within and found.p_value <= TRANSFORM_ALPHA:
        return Verdict.FAIL
    return Verdict.PASS if is_within and num_clusters >= MINIMUM_CLUSTERS else Verdict.INCONCLUSIVE


def _result(candidate: DrawnTokens, stock: DrawnTokens, compared: Compared, *, num_clusters: int) -> CheckResult:
    surprise, transform, tail = compared.surprise, compared.transform, compared.improbable
    of_temperature, of_transform = temperature_margin(stock), transform_margin(stock)
    margin = of_temperature * stock.mean_variance
    verdicts = {
        "surprise": surprise_verdict(surprise, margin, num_clusters),
        "transform": transform_verdict(transform, of_transform, num_clusters),
        "improbable": tail.verdict,
    }
    error = surprise.difference / stock.mean_variance
    direction = "hot" if error > 0 else "cold"
    return CheckResult(
        check="sampling",
        verdict=Verdict.combine(list(verdicts.values())),
        summary=f"surprise {nats_per_token(surprise.difference)}, as of a temperature {abs(error):.1%} too {direction} "
        f"(margin {of_temperature:.1%}); transform off by {transform.largest:.4f} at most, p={transform.p_value:.2g}; "
        f"{plural(tail.num_candidate, 'request')} with an improbable draw (stock {tail.num_stock})",
        candidate=f"z {candidate.z:+.1f}",
        stock=f"z {stock.z:+.1f}",
        bound=nats_per_token(max(surprise.upper_95, -surprise.lower_95)),
        limit=nats_per_token(margin),
        evidence={
            **{f"{name}_verdict": verdict.value for name, verdict in verdicts.items()},
            "surprise_difference_nats_per_token": finite(surprise.difference),
            "standard_error_nats_per_token": finite(surprise.standard_error),
            "upper_95_nats_per_token": finite(surprise.upper_95),
            "lower_95_nats_per_token": finite(surprise.lower_95),
            "upper_999_nats_per_token": finite(surprise.upper_fail),
            "lower_999_nats_per_token": finite(surprise.lower_fail),
            "margin_nats_per_token": margin,
            "margin_fraction_of_temperature": of_temperature,
            "temperature_error_fraction": finite(error),
            "transform_largest_difference": transform.largest,
            "transform_upper_95": transform.upper(PASS_ALPHA),
            "transform_margin": of_transform,
            "transform_p": transform.p_value,
            "num_requests_improbable": tail.num_candidate,
            "num_stock_requests_improbable": tail.num_stock,
            "improbable_p": tail.p_value,
            "improbable_tail": TAIL,
            **_arm("candidate", candidate),
            **_arm("stock", stock),
            "num_clusters": num_clusters,
        },
        notes=_notes(verdicts, num_clusters),
    )


def _arm(name: str, tokens: DrawnTokens) -> dict[str, Any]:
    return {
        f"{name}_num_tokens": tokens.num_drawn,
        f"{name}_z": tokens.z,
        f"{name}_surprise_nats_per_token": float(tokens.surprise.sum()) / tokens.num_drawn,
        f"{name}_mean_variance_nats_squared": tokens.mean_variance,
    }


def _notes(verdicts: dict[str, Verdict], num_clusters: int) -> tuple[str, ...]:
    open_parts = [name for name, verdict in verdicts.items() if verdict is Verdict.INCONCLUSIVE]
    if not open_parts:
        return ()
    if open_parts == ["improbable"]:
        return ("improbable undecided: more such draws than stock's, and too few to tell; more prompts decide",)
    few = f"{num_clusters} clusters of at least {MINIMUM_CLUSTERS}"
    why = few if num_clusters < MINIMUM_CLUSTERS else "the bounds are wider than the margins"
    return (f"{' and '.join(open_parts)} undecided: {why}; more prompts or longer replies decide",)
