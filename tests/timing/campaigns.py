"""Small campaigns for tests of the timing statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossguard.timing.base import FloatArray, NoiseProfile, PairTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a made campaign is like; spreads in nats."""

    pairs: int = 8
    requests: int = 32
    gain: float = 0.0  # log gain
    noise: float = 0.01
    launch: float = 0.002
    candidate_launch: float | None = None
    device: float = 0.02
    period: float = 0.0  # second runs are slower by this
    losers: int = 0  # first requests, which lose 9 %
    heterogeneity: float = 0.0
    seed: int = 1


def make(made: Made) -> PairTimes:
    """A two-device campaign, ABBA over pairs."""
    rng = np.random.default_rng(made.seed)
    gains = made.gain + made.heterogeneity * rng.standard_normal(made.requests)
    gains[: made.losers] -= 0.09
    device = device_plan(made.pairs)
    logs = rng.normal(0.0, made.noise, (made.pairs, 2, 2, made.requests))
    logs += np.random.default_rng(99).normal(0.0, 0.6, made.requests)
    spread = made.launch if made.candidate_launch is None else made.candidate_launch
    logs += (rng.standard_normal((made.pairs, 2, 2)) * np.array([made.launch, spread]))[..., None]
    logs += made.device * device[..., None] + np.array([0.0, made.period])[:, None, None]
    logs[:, :, 1, :] -= gains
    return with_seconds(np.exp(logs), device)


def device_plan(pairs: int) -> np.ndarray:
    """[M, 2, 2] two devices, exchanged inside a pair, the order of pairs alternating."""
    first = np.array([[0, 1], [1, 0]])
    return np.stack([first if index % 2 == 0 else first[::-1] for index in range(pairs)])


def with_seconds(seconds: FloatArray, device: np.ndarray | None = None) -> PairTimes:
    """Times with 24 tokens a reply and two strata that alternate."""
    return PairTimes(
        seconds=seconds,
        metric="latency",
        device=device_plan(seconds.shape[0]) if device is None else device,
        num_tokens=np.full(seconds.shape, 24),
        strata=tuple("long" if index % 2 else "short" for index in range(seconds.shape[-1])),
    )


def profile(size: float = 0.002, pairs: int = 8, seed: int = 3) -> NoiseProfile:
    """An A/A profile with about this rms."""
    means = np.random.default_rng(seed).normal(0.0, size, pairs)
    return NoiseProfile(
        pair_means=tuple(means.tolist()),
        pair_throughputs=tuple((1.2 * means).tolist()),
        request_sd=0.01,
        stock_levels=tuple(np.random.default_rng(seed + 1).normal(0.0, 0.002, pairs).tolist()),
    )
