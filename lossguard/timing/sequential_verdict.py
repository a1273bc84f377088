"""One campaign under the sequential plan: promote, stop, or go on measuring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from lossguard.records import Verdict
from lossguard.timing.base import FloatArray, NoiseProfile, PairTimes, TimingVerdict
from lossguard.timing.confidence_sequence import mixture_radius
from lossguard.timing.crossover import judged_seconds, log_ratios, log_throughputs
from lossguard.timing.noise import profile_problem, sequential_noise
from lossguard.timing.rules import Bar, Claim, bar_of, judge
from lossguard.timing.sequential import SequentialArrays, SequentialPlan, sequential_arrays

Action = Literal["promote", "stop-futile", "stop-exhausted", "continue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialVerdict:
    """What to do next, and the verdict if nothing more were measured."""

    action: Action
    reason: str
    verdict: TimingVerdict
    next_look: int | None  # pairs in total
    evidence: Mapping[str, Any]


def first_pairs(times: PairTimes, count: int) -> PairTimes:
    """The first ``count`` pairs of a campaign."""
    return replace(
        times, seconds=times.seconds[:count], device=times.device[:count], num_tokens=times.num_tokens[:count]
    )


def judge_sequentially(
    times: PairTimes, noise: NoiseProfile | None, plan: SequentialPlan, claim: Claim
) -> SequentialVerdict:
    """Walk over the looks that these pairs have passed.

    ``times`` holds every pair ever measured of this candidate against this stock, in order, those of earlier
    submissions first: a re-submission continues the test and never starts it again. A crossing promotes only if the
    fixed-sample rule passes on the pairs of that look too (4 pairs, the larger variance, guards). A fixed-sample PASS
    without a crossing is INCONCLUSIVE: judged after every pair it would pass one candidate in five wrongly.

    Raises
    ------
    UsageError
        LG1050 to LG1053.
    """
    bar = bar_of(times, noise, claim)
    settled = replace(claim, outputs_diverge=bar.outputs_diverge)  # one bar for all looks
    problem = profile_problem(noise)
    if problem or noise is None:
        verdict = judge(times, noise, settled)
        return _going_on(times, plan, verdict, {"problem": problem})
    deviation = sequential_noise(noise, claim.estimand)
    pair_means = _pair_means(times, claim, bar)
    found = sequential_arrays(pair_means, np.log1p(np.asarray(bar.threshold)), np.asarray(deviation.value), plan)
    anytime = _anytime_lower(pair_means, deviation.value, plan.alpha)
    evidence = _evidence(found, plan) | {
        "deviation": deviation.value,
        "deviation_reason": deviation.reason,
        "anytime_gain_lower": anytime,
    }
    for look in found.pairs[found.crossed].tolist():
        verdict = judge(first_pairs(times, look), noise, settled)
        if verdict.verdict is Verdict.PASS:
            reason = f"the boundary was crossed at {look} pairs and the fixed-sample bound holds there"
            return SequentialVerdict(
                action="promote", reason=reason, verdict=verdict, next_look=None, evidence=evidence
            )
    verdict = _not_promoted(judge(times, noise, settled))
    if found.futile.size and found.futile[-1] and found.pairs[-1] == times.num_pairs:
        reason = f"futile: the upper {100 * plan.futility_confidence:.0f} % bound is under the threshold"
        return SequentialVerdict(
            action="stop-futile", reason=reason, verdict=verdict, next_look=None, evidence=evidence
        )
    return _going_on(times, plan, verdict, evidence)


def _pair_means(times: PairTimes, claim: Claim, bar: Bar) -> FloatArray:
    seconds = judged_seconds(times, per_token=bar.outputs_diverge)
    return log_throughputs(seconds) if claim.estimand == "throughput" else log_ratios(seconds).mean(axis=-1)


def _anytime_lower(pair_means: FloatArray, deviation: float, alpha: float) -> float:
    size = pair_means.size
    return float(np.expm1(pair_means.mean() - mixture_radius(np.asarray(size), deviation, alpha)))


def _not_promoted(verdict: TimingVerdict) -> TimingVerdict:
    if verdict.verdict is not Verdict.PASS:
        return verdict
    reason = "the fixed-sample bound holds, but the sequential boundary has not been crossed"
    return replace(verdict, verdict=Verdict.INCONCLUSIVE, reasons=(reason, *verdict.reasons))


def _going_on(
    times: PairTimes, plan: SequentialPlan, verdict: TimingVerdict, evidence: Mapping[str, Any]
) -> SequentialVerdict:
    coming = [look for look in plan.looks if look > times.num_pairs]
    if coming:
        reason = f"{times.num_pairs} pairs; the next look is at {coming[0]}"
        return SequentialVerdict(
            action="continue", reason=reason, verdict=verdict, next_look=coming[0], evidence=evidence
        )
    reason = f"all {plan.looks[-1]} planned pairs are used up"
    if plan.pooling_share > 0:
        reason += "; further pairs are judged by the confidence sequence with the error kept for them"
    return SequentialVerdict(
        action="stop-exhausted",
        reason=reason,
        verdict=verdict,
        next_look=times.num_pairs + 1 if plan.pooling_share > 0 else None,
        evidence=evidence,
    )


def _evidence(found: SequentialArrays, plan: SequentialPlan) -> dict[str, Any]:
    rows = zip(
        found.pairs.tolist(),
        found.deviation.tolist(),
        found.statistic.tolist(),
        found.boundary.tolist(),
        found.crossed.tolist(),
        strict=True,
    )
    return {
        "constant": plan.constant,
        "looks": list(plan.looks),
        "alpha": plan.alpha,
        "pooling_share": plan.pooling_share,
        "taken": [
            {"pairs": pairs, "deviation": used, "statistic": statistic, "boundary": boundary, "crossed": crossed}
            for pairs, used, statistic, boundary, crossed in rows
        ],
    }
