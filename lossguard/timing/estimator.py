"""The gain with one-sided bounds: request variance + launch variance, Satterthwaite t (loop_timing 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from lossguard.errors import UsageError
from lossguard.timing.base import BoolArray, Estimand, Estimate, FloatArray, LaunchRule, NoiseProfile, PairTimes
from lossguard.timing.crossover import judged_seconds, log_ratios, log_throughputs
from lossguard.timing.launch_variance import LaunchVariance, choose_launch_rule, launch_variance

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateArrays:
    """Estimates of a batch of campaigns; every array has the batch's shape."""

    log_gain: FloatArray
    standard_error: FloatArray
    degrees_of_freedom: FloatArray
    log_lower: FloatArray
    log_upper: FloatArray
    request_variance: FloatArray
    launch_variance: FloatArray
    candidate_is_noisier: BoolArray
    kept_variance: float = 0.0


def t_quantile(freedom: FloatArray, confidence: float) -> FloatArray:
    """Student's quantile, elementwise."""
    return np.asarray(special.stdtrit(freedom, confidence))


def estimate_arrays(
    differences: FloatArray,
    profile: FloatArray,
    *,
    launch_rule: LaunchRule,
    requests_are_sample: bool = True,
    confidence: float = CONFIDENCE,
    kept_variance: float = 0.0,
) -> EstimateArrays:
    """Mean log time ratio of campaigns from per-request log ratios [..., M, N] and A/A pair means [..., M0].

    ``requests_are_sample``: the gain of the population that the requests came from. Otherwise that of these requests;
    then only the scatter of pair means counts, which already holds each request's own noise. ``kept_variance``: see
    ``kept_launch_variance``.
    """
    pair_means = differences.mean(axis=-1)
    request_means = differences.mean(axis=-2)
    num_requests = request_means.shape[-1]
    launch = launch_variance(pair_means, profile, launch_rule)
    variance = np.zeros(pair_means.shape[:-1])
    if requests_are_sample:
        variance = request_means.var(axis=-1, ddof=1) / num_requests
    return combine(pair_means, variance, num_requests - 1.0, launch, confidence=confidence, kept_variance=kept_variance)


def combine(
    pair_means: FloatArray,
    request_variance: FloatArray,
    request_freedom: float,
    launch: LaunchVariance,
    *,
    confidence: float = CONFIDENCE,
    kept_variance: float = 0.0,
) -> EstimateArrays:
    """Point and t bounds from the variance of the mean over requests and of one pair's launches.

    ``kept_variance`` is the same in all pairs, so that more of them do not make it smaller, and has one degree of
    freedom. Its reach and that of the rest are added in quadrature (Zou and Donner 2008): with Satterthwaite's freedom
    the bound holds in 90 % only.
    """
    point = pair_means.mean(axis=-1)
    launch_part = launch.variance / pair_means.shape[-1]
    freedom = satterthwaite(request_variance, request_freedom, launch_part, launch.degrees_of_freedom)
    scatter = request_variance + launch_part
    error = np.sqrt(scatter + kept_variance)
    reach = np.hypot(t_quantile(freedom, confidence) * np.sqrt(scatter), kept_reach(kept_variance, confidence))
    return EstimateArrays(
        log_gain=point,
        standard_error=error,
        degrees_of_freedom=freedom,
        log_lower=point - reach,
        log_upper=point + reach,
        request_variance=request_variance,
        launch_variance=launch_part,
        candidate_is_noisier=launch.candidate_is_noisier,
        kept_variance=kept_variance,
    )


def kept_reach(kept_variance: float, confidence: float) -> float:
    """Nats: how far a difference between kept launches may move a gain, from one draw of it."""
    return float(t_quantile(np.ones(()), confidence)) * float(np.sqrt(kept_variance))


def satterthwaite(
    first: FloatArray, first_freedom: FloatArray | float, second: FloatArray, second_freedom: FloatArray
) -> FloatArray:
    """Degrees of freedom of the sum of two independent variances (Satterthwaite 1946); 1 where both are 0."""
    largest = np.maximum(first, second)
    scale = np.where(largest > 0, largest, 1.0)  # the ratio has no unit, and squares of tiny variances underflow
    one, two = first / scale, second / scale
    denominator = one**2 / np.maximum(first_freedom, 1.0) + two**2 / second_freedom
    return np.where(largest > 0, (one + two) ** 2 / np.where(denominator > 0, denominator, 1.0), 1.0)


def profile_values(noise: NoiseProfile, estimand: Estimand) -> FloatArray:
    """[M0] the A/A pair statistics of the same kind as the estimand's.

    Raises
    ------
    UsageError
        LG1052: a profile without totals cannot serve the throughput estimand.
    """
    if estimand != "throughput":
        return np.asarray(noise.pair_means, dtype=np.float64)
    if noise.pair_throughputs is None:
        raise UsageError(
            "the A/A profile holds no log ratios of total time",
            why="total time is dominated by long requests and is noisier than the mean over requests",
            fix="record the profile again with this version, or judge the population or suite estimand",
            code="LG1052",
        )
    return np.asarray(noise.pair_throughputs, dtype=np.float64)


def kept_launch_variance(noise: NoiseProfile, estimand: Estimand) -> float:
    """Nats squared: how much one launch differs from another, where launches are kept over all pairs; else 0.

    Two processes of one stock that stay alive differ in every pair alike, as by where their memory lies (on an H200 by
    0.1 to 0.4 %). The A/A mean is one draw of that difference.
    """
    return float(profile_values(noise, estimand).mean() ** 2) if noise.keeps_launches else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How an estimate was asked for."""

    estimand: Estimand = "population"
    launch_rule: LaunchRule = "largest"
    per_token: bool = False
    confidence: float = CONFIDENCE
    reasons: tuple[str, ...] = ()


def estimate(
    times: PairTimes,
    noise: NoiseProfile,
    *,
    estimand: Estimand = "population",
    per_token: bool = False,
    launch_rule: LaunchRule | None = None,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """The gain of one campaign, with one-sided bounds, each at ``confidence``.

    ``population``: mean log ratio over the population of the requests. ``suite``: over these very requests.
    ``throughput``: log ratio of total time over these very requests (``fieller.throughput_of_population`` takes the
    requests for a sample). ``per_token`` divides each time by the tokens of its reply.

    Raises
    ------
    UsageError
        LG1050, LG1051, LG1052, or LG1053 where one request is to stand for a population.
    """
    rule, reason = choose_launch_rule(times.num_pairs) if launch_rule is None else (launch_rule, "rule given by caller")
    terms = Terms(estimand=estimand, launch_rule=rule, per_token=per_token, confidence=confidence, reasons=(reason,))
    return single(_arrays(times, noise, terms), times, terms)


def _arrays(times: PairTimes, noise: NoiseProfile, terms: Terms) -> EstimateArrays:
    profile, kept = profile_values(noise, terms.estimand), kept_launch_variance(noise, terms.estimand)
    seconds = judged_seconds(times, per_token=terms.per_token)
    if terms.estimand == "throughput":
        pair_means = log_throughputs(seconds)
        launch = launch_variance(pair_means, profile, terms.launch_rule)
        return combine(pair_means, np.zeros(()), 1.0, launch, confidence=terms.confidence, kept_variance=kept)
    sampled = terms.estimand == "population"
    if sampled:
        check_sample(times)
    return estimate_arrays(
        log_ratios(seconds),
        profile,
        launch_rule=terms.launch_rule,
        requests_are_sample=sampled,
        confidence=terms.confidence,
        kept_variance=kept,
    )


def check_sample(times: PairTimes) -> None:
    """LG1053 where there are not the two requests that a variance needs."""
    if times.num_requests < 2:
        raise UsageError(
            "one request is no sample of a population",
            why="how much requests differ from each other cannot be told from one",
            fix="time at least two requests (12 or more say something), or judge the suite estimand",
            code="LG1053",
        )


def single(found: EstimateArrays, times: PairTimes, terms: Terms) -> Estimate:
    """The record of a batch of one."""
    return Estimate(
        estimand=terms.estimand,
        log_gain=float(found.log_gain),
        standard_error=float(found.standard_error),
        degrees_of_freedom=float(found.degrees_of_freedom),
        log_lower=float(found.log_lower),
        log_upper=float(found.log_upper),
        variance_parts={
            "request": float(found.request_variance),
            "launch": float(found.launch_variance),
            "launch_from_observed": float(found.candidate_is_noisier),
            "kept_launches": found.kept_variance,
        },
        launch_rule=terms.launch_rule,
        confidence=terms.confidence,
        num_pairs=times.num_pairs,
        num_requests=times.num_requests,
        per_token=terms.per_token,
        reasons=terms.reasons,
    )
