"""Guard rails beside the mean: a gain on average must not be paid by one kind of request, or by a few.

Covered: a kind of request (stratum) that becomes over 1 % slower; more than 5 % of requests becoming over 3 % slower.
Not covered: smaller losses, and losses of fewer requests than that; the mean itself bounds what they weigh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from lossguard.records import Verdict
from lossguard.timing.base import BoolArray, FloatArray, LaunchRule
from lossguard.timing.estimator import CONFIDENCE, satterthwaite
from lossguard.timing.launch_variance import launch_variance
from lossguard.timing.strata import Strata, merge_strata

STRATUM_LIMIT = -0.01
TAIL_LIMIT = -0.03
TAIL_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLimits:
    """Gains that no stratum, and no more than 5 % of requests, may fall under."""

    stratum: float = STRATUM_LIMIT
    tail: float = TAIL_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class StratumArrays:
    """Per stratum of each campaign, [..., K]; a stratum with fewer than two requests has infinite bounds."""

    log_gain: FloatArray
    log_lower: FloatArray
    log_upper: FloatArray
    breached: BoolArray


def stratum_guard(
    differences: FloatArray,
    membership: FloatArray,
    profile: FloatArray,
    *,
    launch_rule: LaunchRule,
    limit: float = STRATUM_LIMIT,
) -> StratumArrays:
    """Bounds of each stratum's gain from log ratios [..., M, N], membership [..., N, K] of 0 and 1 and the A/A profile.

    A stratum breaches if its upper bound lies under ``limit``. The bounds share one error of 5 % (Bonferroni), so that
    many strata do not make a sound candidate fail; a request belongs to one stratum, so none can hide.
    """
    request_means = differences.mean(axis=-2)
    centre = request_means.mean(axis=-1, keepdims=True)
    around = request_means - centre
    sizes = membership.sum(axis=-2)  # [..., K]
    testable = sizes >= 2
    number = np.maximum(sizes, 2.0)
    means = (around[..., None, :] @ membership)[..., 0, :] / number
    squares = (around[..., None, :] ** 2 @ membership)[..., 0, :]
    variance = np.maximum(squares - number * means**2, 0.0) / (number - 1) / number
    launch = launch_variance(differences.mean(axis=-1), profile, launch_rule)
    launch_part = (launch.variance / differences.shape[-2])[..., None]
    freedom = satterthwaite(variance, number - 1, launch_part, launch.degrees_of_freedom[..., None])
    level = 1 - (1 - CONFIDENCE) / np.maximum(testable.sum(axis=-1, keepdims=True), 1)
    reach = np.where(testable, special.stdtrit(freedom, level) * np.sqrt(variance + launch_part), np.inf)
    gains = means + centre
    upper = gains + reach
    return StratumArrays(log_gain=gains, log_lower=gains - reach, log_upper=upper, breached=upper < np.log1p(limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class TailArrays:
    """Requests that became slower than the limit, of each campaign."""

    num_slow: FloatArray
    fifth_percentile: FloatArray  # log gain of the request at the worst 5 %, measurement noise taken out
    within: BoolArray  # not more than 5 % of the requests
    breached: BoolArray  # over 5 % even allowing for the sample


def tail_guard(differences: FloatArray, *, limit: float = TAIL_LIMIT) -> TailArrays:
    """How many requests lost more than ``limit``, from log ratios [..., M, N].

    A request's mean over pairs scatters by noise as well as by its own gain. The residuals of pairs and requests tell
    the noise, and the means are drawn towards the centre until they scatter as the true gains do (Louis 1984,
    constrained empirical Bayes). Two thresholds: over 5 % of the sample is not PASS; over 5 % by an exact binomial
    test at 5 % is a breach.
    """
    gains = shrunken_gains(differences)
    size = gains.shape[-1]
    slow = (gains < np.log1p(limit)).sum(axis=-1).astype(np.float64)
    chance = special.bdtrc(slow - 1, size, TAIL_SHARE)  # P(at least as many | 5 %)
    return TailArrays(
        num_slow=slow,
        fifth_percentile=np.sort(gains, axis=-1)[..., int(TAIL_SHARE * size)],  # within: not under the limit
        within=slow <= TAIL_SHARE * size,
        breached=(slow > 0) & (chance < 1 - CONFIDENCE),
    )


def shrunken_gains(differences: FloatArray) -> FloatArray:
    """[..., M, N] -> [..., N]: log gains of requests that scatter as the true gains are estimated to."""
    num_pairs, num_requests = differences.shape[-2:]
    means = differences.mean(axis=-2)
    centre = means.mean(axis=-1, keepdims=True)
    if num_pairs < 2 or num_requests < 2:
        return np.asarray(means)
    residuals = differences - means[..., None, :] - differences.mean(axis=-1, keepdims=True) + centre[..., None]
    noise = np.square(residuals).sum(axis=(-1, -2)) / ((num_pairs - 1) * (num_requests - 1)) / num_pairs
    total = means.var(axis=-1, ddof=1)
    kept = np.sqrt(np.maximum(1 - noise / np.where(total > 0, total, 1.0), 0.0))
    return np.asarray(centre + kept[..., None] * (means - centre))


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardReport:
    """The verdict of both guards on one campaign: FAIL where a loss is shown, INCONCLUSIVE where it may be."""

    verdict: Verdict
    reasons: tuple[str, ...]
    evidence: Mapping[str, Any]


def judge_guards(
    differences: FloatArray,
    strata: Sequence[str],
    profile: FloatArray,
    *,
    launch_rule: LaunchRule,
    limits: GuardLimits,
) -> GuardReport:
    """Both guards on one campaign's log ratios [M, N]."""
    merged = merge_strata(strata)
    found = stratum_guard(differences, merged.membership, profile, launch_rule=launch_rule, limit=limits.stratum)
    tail = tail_guard(differences, limit=limits.tail)
    parts = (_stratum_verdict(merged, found, limits), _tail_verdict(tail, differences.shape[-1], limits))
    return GuardReport(
        verdict=Verdict.combine([verdict for verdict, _ in parts]),
        reasons=tuple(reason for _, reason in parts),
        evidence={**_stratum_evidence(merged, found), "tail": _tail_evidence(tail, limits)},
    )


def _stratum_verdict(merged: Strata, found: StratumArrays, limits: GuardLimits) -> tuple[Verdict, str]:
    names = [
        f"{name} ({100 * np.expm1(gain):+.2f} %, at most {100 * np.expm1(upper):+.2f} %)"
        for name, gain, upper, bad in zip(merged.names, found.log_gain, found.log_upper, found.breached, strict=True)
        if bad
    ]
    if names:
        return Verdict.FAIL, f"slower than {100 * limits.stratum:.1f} %: {', '.join(names)}"
    return Verdict.PASS, f"none of {len(merged.names)} strata is shown to be under {100 * limits.stratum:.1f} %"


def _tail_verdict(tail: TailArrays, num_requests: int, limits: GuardLimits) -> tuple[Verdict, str]:
    text = f"{int(tail.num_slow)} of {num_requests} requests are under {100 * limits.tail:.1f} %"
    if tail.within:
        return Verdict.PASS, text
    if tail.breached:
        return Verdict.FAIL, f"{text}: shown to be over 5 % of requests"
    return Verdict.INCONCLUSIVE, f"{text}: over 5 % of the sample, not yet shown of the population"


def _stratum_evidence(merged: Strata, found: StratumArrays) -> dict[str, Any]:
    rows = [
        {
            "stratum": name,
            "num_requests": int(size),
            "gain": float(np.expm1(gain)),
            "gain_lower": _finite(low),
            "gain_upper": _finite(high),
        }
        for name, size, gain, low, high in zip(
            merged.names, merged.sizes, found.log_gain, found.log_lower, found.log_upper, strict=True
        )
    ]
    return {"strata": rows, "strata_reason": merged.reason}


def _finite(log_gain: float) -> float | None:
    return float(np.expm1(log_gain)) if np.isfinite(log_gain) else None  # JSON knows no infinity


def _tail_evidence(tail: TailArrays, limits: GuardLimits) -> dict[str, Any]:
    return {
        "num_slow": int(tail.num_slow),
        "limit": limits.tail,
        "gain_at_worst_5_percent": float(np.expm1(tail.fifth_percentile)),
    }
