"""The two rules: ``faster`` promotes a gain, ``not_slower`` shows non-inferiority (loop_timing 3.2).

Covered: a mean gain on the declared estimand, under device differences, shared drift and launches that are noisier than
stock's. Not covered: whether the outputs are right (the lossless gate says that), and times that the client did not
take itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from lossguard.errors import UsageError
from lossguard.records import Verdict
from lossguard.timing.base import (
    BoolArray,
    Estimand,
    Estimate,
    FloatArray,
    NoiseProfile,
    PairTimes,
    TimingVerdict,
)
from lossguard.timing.crossover import check_pairs, divergence, judged_seconds, log_ratios
from lossguard.timing.estimator import estimate, profile_values
from lossguard.timing.guards import STRATUM_LIMIT, TAIL_LIMIT, GuardLimits, GuardReport, judge_guards
from lossguard.timing.launch_variance import MINIMUM_PAIRS
from lossguard.timing.noise import profile_problem, threshold_noise

SAME_OUTPUTS_FLOOR = 0.01
DIVERGING_OUTPUTS_FLOOR = 0.03
NOISE_MULTIPLE = 2.0


def promotion_threshold(noise: FloatArray, *, asked: float, outputs_diverge: bool) -> FloatArray:
    """Gain that the lower bound must exceed: max(asked, 1 % + 2 x noise), 3 % in place of 1 % where outputs diverge."""
    floor = DIVERGING_OUTPUTS_FLOOR if outputs_diverge else SAME_OUTPUTS_FLOOR
    return np.maximum(asked, floor + NOISE_MULTIPLE * noise)


def decide(log_lower: FloatArray, log_upper: FloatArray, threshold: FloatArray) -> tuple[BoolArray, BoolArray]:
    """(passes, fails) elementwise: lower bound over the threshold; upper bound under it. Neither is INCONCLUSIVE."""
    limit = np.log1p(threshold)
    return np.asarray(log_lower > limit), np.asarray(log_upper < limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is to be shown.

    ``amount``: for ``faster`` the gain asked for (0.2: 1.2 times as fast), for ``not-slower`` the margin (0.01: at most
    1 % slower). ``outputs_diverge``: what the caller knows of the replies' ids; where lengths differ they diverge
    whatever it says. Raises UsageError LG1054.
    """

    rule: Literal["faster", "not-slower"] = "faster"
    amount: float = 0.0
    outputs_diverge: bool | None = None
    estimand: Estimand = "population"

    def __post_init__(self) -> None:
        high = math.inf if self.rule == "faster" else 1.0
        if not (math.isfinite(self.amount) and 0 <= self.amount < high):
            raise UsageError(
                f"{'an asked gain' if self.rule == 'faster' else 'a margin'} of {self.amount}",
                why="gains are fractions: 0.2 is 20 % faster, and a slip here would move the bar unseen",
                fix="give a number from 0" + ("" if math.isinf(high) else " and under 1"),
                code="LG1054",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The gain that the lower bound must exceed, how it came about, and the guards' limits beside it."""

    threshold: float
    limits: GuardLimits
    outputs_diverge: bool
    reasons: tuple[str, ...]
    evidence: dict[str, Any]


def faster(
    times: PairTimes,
    noise: NoiseProfile | None,
    *,
    asked: float = 0.0,
    outputs_diverge: bool | None = None,
    estimand: Estimand = "population",
) -> TimingVerdict:
    """Is the candidate faster by more than max(``asked``, 1 % + 2 x noise)? See ``judge``."""
    return judge(times, noise, Claim(amount=asked, outputs_diverge=outputs_diverge, estimand=estimand))


def not_slower(
    times: PairTimes,
    noise: NoiseProfile | None,
    *,
    margin: float = 0.01,
    outputs_diverge: bool | None = None,
    estimand: Estimand = "population",
) -> TimingVerdict:
    """Is the candidate at most ``margin`` slower? Non-inferiority; see ``judge``."""
    claim = Claim(rule="not-slower", amount=margin, outputs_diverge=outputs_diverge, estimand=estimand)
    return judge(times, noise, claim)


def judge(times: PairTimes, noise: NoiseProfile | None, claim: Claim) -> TimingVerdict:
    """PASS if the lower 95 % bound exceeds the bar and both guards pass; FAIL if the upper 95 % bound is under the bar
    or a guard shows a loss; else INCONCLUSIVE, as with fewer than 4 pairs or an A/A profile of fewer than 8.

    Raises
    ------
    UsageError
        LG1050 to LG1053.
    """
    bar = bar_of(times, noise, claim)
    found = _estimate(times, noise, claim.estimand, per_token=bar.outputs_diverge)
    problems = evidence_problems(times, noise)
    if problems or noise is None:
        return _verdict(claim, bar, found, Verdict.INCONCLUSIVE, problems)
    guards = _guards(times, noise, found, bar)
    passes, fails = decide(np.asarray(found.log_lower), np.asarray(found.log_upper), np.asarray(bar.threshold))
    mean = Verdict.PASS if passes else Verdict.FAIL if fails else Verdict.INCONCLUSIVE
    parts = {"mean_verdict": mean.value, "guard_verdict": guards.verdict.value, "guards": dict(guards.evidence)}
    full = replace(bar, evidence={**bar.evidence, **parts})
    reasons = (_mean_reason(found, bar.threshold, mean), *guards.reasons)
    return _verdict(claim, full, found, Verdict.combine([mean, guards.verdict]), reasons)


def bar_of(times: PairTimes, noise: NoiseProfile | None, claim: Claim) -> Bar:
    """The bar of a claim. A margin over 1 % moves the guards' limits with it.

    Raises
    ------
    UsageError
        LG1050 to LG1052.
    """
    check_pairs(times)
    diverges, reason = _divergence(times, told=claim.outputs_diverge)
    reasons = (reason, *_design(times))
    if claim.rule == "not-slower":
        evidence: dict[str, Any] = {"margin": claim.amount, "outputs_diverge": diverges}
        return Bar(
            threshold=-claim.amount,
            limits=guard_limits(claim),
            outputs_diverge=diverges,
            reasons=reasons,
            evidence=evidence,
        )
    bound = threshold_noise(noise, claim.estimand) if noise is not None and noise.num_pairs > 0 else None
    value = promotion_threshold(np.asarray(bound.value if bound else 0.0), asked=claim.amount, outputs_diverge=diverges)
    evidence = {
        "asked": claim.amount,
        "floor": DIVERGING_OUTPUTS_FLOOR if diverges else SAME_OUTPUTS_FLOOR,
        "threshold_noise": bound.value if bound else None,
        "threshold_reason": bound.reason if bound else "no A/A profile",
        "outputs_diverge": diverges,
    }
    return Bar(
        threshold=float(value),
        limits=guard_limits(claim),
        outputs_diverge=diverges,
        reasons=reasons,
        evidence=evidence,
    )


def guard_limits(claim: Claim) -> GuardLimits:
    """The guards' limits; a margin over 1 % moves them."""
    if claim.rule == "faster":
        return GuardLimits()
    return GuardLimits(stratum=min(STRATUM_LIMIT, -claim.amount), tail=min(TAIL_LIMIT, -claim.amount))


def _design(times: PairTimes) -> tuple[str, ...]:
    if times.design == "two-device":
        return ()
    return ("one device, in turns (ABBA): the weaker design, as only drift that is even over a block cancels",)


def _divergence(times: PairTimes, *, told: bool | None) -> tuple[bool, str]:
    seen, reason = divergence(times)
    if told and not seen:
        return True, "the caller says that outputs diverge: time per token, 3 % in place of 1 %"
    return seen, reason


def _estimate(times: PairTimes, noise: NoiseProfile | None, estimand: Estimand, *, per_token: bool) -> Estimate:
    if noise is not None and noise.num_pairs > 0:
        return estimate(times, noise, estimand=estimand, per_token=per_token)
    point = float(log_ratios(judged_seconds(times, per_token=per_token)).mean())
    return Estimate(
        estimand=estimand,
        log_gain=point,
        standard_error=math.inf,
        degrees_of_freedom=1.0,
        log_lower=-math.inf,
        log_upper=math.inf,
        num_pairs=times.num_pairs,
        num_requests=times.num_requests,
        per_token=per_token,
        reasons=("no A/A profile: the gain has no bound",),
    )


def evidence_problems(times: PairTimes, noise: NoiseProfile | None) -> tuple[str, ...]:
    """Why no verdict can rest on this evidence; empty if one can."""
    problems = [profile_problem(noise)]
    if times.num_pairs < MINIMUM_PAIRS:
        problems.append(f"{times.num_pairs} complete swap pairs; a verdict takes {MINIMUM_PAIRS}")
    return tuple(problem for problem in problems if problem)


def _guards(times: PairTimes, noise: NoiseProfile, found: Estimate, bar: Bar) -> GuardReport:
    return judge_guards(
        log_ratios(judged_seconds(times, per_token=found.per_token)),
        times.strata,
        profile_values(noise, "population"),
        launch_rule=found.launch_rule,
        limits=bar.limits,
    )


def _mean_reason(found: Estimate, threshold: float, verdict: Verdict) -> str:
    relation = {
        Verdict.PASS: "the lower bound exceeds",
        Verdict.FAIL: "the upper bound is under",
        Verdict.INCONCLUSIVE: "the bounds enclose",
    }[verdict]
    bounds = f"{100 * found.gain_lower:+.2f} % and {100 * found.gain_upper:+.2f} %"
    gain = f"gain {100 * found.gain:+.2f} % (one-sided {100 * found.confidence:.0f} % bounds {bounds})"
    return f"{gain}: {relation} {100 * threshold:+.2f} %"


def _verdict(claim: Claim, bar: Bar, found: Estimate, verdict: Verdict, reasons: Sequence[str]) -> TimingVerdict:
    return TimingVerdict(
        rule=claim.rule,
        verdict=verdict,
        reasons=(*reasons, *bar.reasons, *found.reasons),
        threshold=bar.threshold,
        estimate=found,
        evidence=bar.evidence,
    )
