"""From measured pairs to a claim: the rule, the sequential test over all submissions, and what speaks against both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lossguard.records import CheckResult, Verdict
from lossguard.stages.timing.pair_times import MeasuredPair, to_pair_times
from lossguard.timing.base import NoiseProfile, PairTimes, TimingVerdict
from lossguard.timing.crossover import judged_seconds, log_ratios
from lossguard.timing.diagnostics import diagnostics
from lossguard.timing.effects import device_effect, order_effect, period_effect
from lossguard.timing.launch_variance import MINIMUM_PAIRS
from lossguard.timing.noise import describe_noise
from lossguard.timing.rules import Claim as RuleClaim
from lossguard.timing.sequential import SequentialPlan
from lossguard.timing.sequential_verdict import SequentialVerdict, judge_sequentially
from lossguard.timing_plan import Timing

CHECK = "speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedCase:
    """Everything that a verdict on speed rests on. ``pairs`` are those of all submissions, oldest first."""

    timing: Timing
    strata: tuple[str, ...]
    num_devices: int
    pairs: tuple[MeasuredPair, ...]
    noise: NoiseProfile | None
    looks: tuple[int, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedVerdict:
    """The check's result, and the numbers that programs read."""

    check: CheckResult
    gain: float | None
    gain_lower_bound: float | None
    gain_upper_bound: float | None


def planned_looks(timing: Timing) -> tuple[int, ...]:
    """Numbers of pairs after which the first submission may end: every one from 4, or the last alone."""
    last = max(timing.pairs, MINIMUM_PAIRS)
    return tuple(range(MINIMUM_PAIRS, last + 1)) if timing.sequential else (last,)


def sequential_verdict(case: SpeedCase) -> tuple[PairTimes, SequentialVerdict]:
    """The rule under the sequential plan, on the pairs of all submissions."""
    times = to_pair_times(case.pairs, case.strata, case.num_devices, metric=case.timing.metric)
    timing = case.timing
    claim = RuleClaim(
        rule=timing.rule,
        amount=timing.asked_gain if timing.rule == "faster" else timing.margin,
        outputs_diverge=any(pair.num_diverging for pair in case.pairs),
        estimand=timing.estimand,
    )
    return times, judge_sequentially(times, case.noise, SequentialPlan(looks=case.looks), claim)


def reason_to_stop(case: SpeedCase) -> str | None:
    """Why the campaign may end after these pairs, by its plan; None to go on."""
    if len(case.pairs) < case.looks[0]:
        return None
    _times, found = sequential_verdict(case)
    return found.reason if found.action in ("promote", "stop-futile") else None


def judge_speed(case: SpeedCase) -> SpeedVerdict:
    """The verdict. Any problem of the measurement makes it INCONCLUSIVE, whatever the times say."""
    if not case.pairs:
        return _without_pairs(case)
    times, sequential = sequential_verdict(case)
    found = sequential.verdict
    verdict = Verdict.INCONCLUSIVE if case.problems else found.verdict
    check = CheckResult(
        check=CHECK,
        verdict=verdict,
        summary=_summary(case, found),
        candidate=_percent(found.estimate.gain),
        stock=f"{1e3 * float(np.exp(np.log(times.seconds[:, :, 0]).mean())):.4g} ms",
        bound=f"{_percent(found.estimate.gain_lower)} .. {_percent(found.estimate.gain_upper)}",
        limit=_percent(found.threshold),
        evidence=_evidence(case, times, sequential),
        notes=tuple(dict.fromkeys([*case.problems, *found.reasons, sequential.reason, *case.notes])),
    )
    return SpeedVerdict(
        check=check,
        gain=_finite(found.estimate.gain),
        gain_lower_bound=_finite(found.estimate.gain_lower),
        gain_upper_bound=_finite(found.estimate.gain_upper),
    )


def _without_pairs(case: SpeedCase) -> SpeedVerdict:
    reasons = case.problems or ("no swap pair was measured",)
    check = CheckResult(
        check=CHECK,
        verdict=Verdict.INCONCLUSIVE,
        summary=reasons[0],
        evidence={"num_pairs": 0},
        notes=(*reasons, *case.notes),
    )
    return SpeedVerdict(check=check, gain=None, gain_lower_bound=None, gain_upper_bound=None)


def _summary(case: SpeedCase, found: TimingVerdict) -> str:
    if case.problems:
        return case.problems[0]
    gain = f"gain {_percent(found.estimate.gain)}, 95 % lower bound {_percent(found.estimate.gain_lower)}"
    return f"{gain}, upper {_percent(found.estimate.gain_upper)}; threshold {_percent(found.threshold)}"


def _evidence(case: SpeedCase, times: PairTimes, sequential: SequentialVerdict) -> dict[str, Any]:
    found = sequential.verdict
    estimate = found.estimate
    means = log_ratios(judged_seconds(times, per_token=estimate.per_token)).mean(axis=-1)
    contrasts = (device_effect(times), period_effect(times), order_effect(times))
    raw = {
        "rule": found.rule,
        "threshold": found.threshold,
        "estimand": estimate.estimand,
        "metric": case.timing.metric,
        "design": times.design,
        "num_pairs": times.num_pairs,
        "num_earlier_pairs": times.num_pairs - sum(pair.origin == case.pairs[-1].origin for pair in case.pairs),
        "num_requests": times.num_requests,
        "num_diverging": sum(pair.num_diverging for pair in case.pairs),
        "pair_gains": np.expm1(means).tolist(),
        "estimate": {**asdict(estimate), "gain": estimate.gain},
        "rule_evidence": dict(found.evidence),
        "sequential": {"action": sequential.action, **sequential.evidence},
        "noise": dict(describe_noise(case.noise, estimate.estimand)) if case.noise else None,
        "contrasts": [asdict(contrast) for contrast in contrasts if contrast is not None],
        "diagnostics": asdict(diagnostics(times, estimate)),
    }
    cleaned: dict[str, Any] = to_plain(raw)
    return cleaned


def to_plain(value: Any) -> Any:
    """Plain JSON: numbers that are not finite become null, tuples lists, numpy scalars Python's own."""
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, np.generic):
        return to_plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _percent(value: float) -> str:
    return f"{100 * value:+.2f} %" if math.isfinite(value) else "unbounded"
