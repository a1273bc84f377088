"""The noise model of loop_timing 3.3: seconds of every request, with what a real host adds to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossguard.timing.base import BoolArray, FloatArray

LENGTH_SPREAD = 0.6  # nats; requests differ a lot in length
STALL_SHARE, STALL_MEAN = 0.01, 0.05
LOSING_SHARE, LOSS, COMPENSATION = 0.10, 0.09, 0.01  # of the mixture: 10 % lose 9 points, the rest gain 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of host and candidate. All spreads are in nats (0.01 is about 1 %)."""

    name: str
    gain: float = 0.01  # mean log gain of the candidate
    request_noise: float = 0.01  # sd of one measurement of one request
    heavy_tails: bool = True  # Student t with 3 degrees of freedom and 1 % stalls of mean +5 %
    device_effect: float = 0.02
    launch_noise: float = 0.0  # sd of one launch of stock
    candidate_launch_noise: float | None = None  # None: as stock's
    heterogeneity: float = 0.0  # sd of the requests' own gains
    mixture: bool = False  # 90 % of requests gain 1 point more, 10 % lose 9 points
    num_requests: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaigns:
    """A batch of simulated campaigns with the A/A profile that each would have recorded."""

    seconds: FloatArray  # [S, M, 2, 2, N]
    profile_seconds: FloatArray  # [S, M0, 2, 2, N] stock against stock
    gains: FloatArray  # [S, N] true log gain of each request
    loses: BoolArray  # [S, N] requests of the losing tenth of a mixture


def request_noise(rng: np.random.Generator, shape: tuple[int, ...], scenario: Scenario) -> FloatArray:
    """Noise of single measurements, in nats."""
    if not scenario.heavy_tails:
        return np.asarray(rng.normal(0.0, scenario.request_noise, shape))
    # Student t with 3 degrees of freedom as a scale mixture; its variance is 3.
    scale = np.sqrt(rng.chisquare(3.0, shape) / 3.0)
    values = rng.standard_normal(shape) / scale * (scenario.request_noise / np.sqrt(3.0))
    stalls = np.flatnonzero(rng.random(shape, dtype=np.float32) < STALL_SHARE)
    values.reshape(-1)[stalls] += rng.exponential(STALL_MEAN, stalls.size)
    return np.asarray(values)


def request_gains(rng: np.random.Generator, num_campaigns: int, scenario: Scenario) -> tuple[FloatArray, BoolArray]:
    """Log gain of each request and whether it is one of the losing tenth, both [S, N]."""
    shape = (num_campaigns, scenario.num_requests)
    if scenario.mixture:
        loses = rng.random(shape) < LOSING_SHARE
        return np.where(loses, scenario.gain - LOSS, scenario.gain + COMPENSATION), loses
    gains = np.full(shape, scenario.gain)
    if scenario.heterogeneity:
        gains = gains + rng.normal(0.0, scenario.heterogeneity, shape)
    return gains, np.zeros(shape, np.bool_)


def measured_seconds(
    rng: np.random.Generator, gains: FloatArray, num_pairs: int, scenario: Scenario, *, stock_twice: bool = False
) -> FloatArray:
    """[S, M, 2, 2, N] seconds of swap pairs for request gains [S, N] (with ``stock_twice``, gains are to be 0)."""
    num_campaigns, num_requests = gains.shape
    logs = request_noise(rng, (num_campaigns, num_pairs, 2, 2, num_requests), scenario)
    logs += rng.normal(0.0, LENGTH_SPREAD, (num_campaigns, 1, 1, 1, num_requests))
    half = scenario.device_effect / 2
    logs += np.array([[half, -half], [-half, half]])[:, :, None]  # the arms exchange devices between the runs
    candidate = scenario.candidate_launch_noise
    spread = scenario.launch_noise if candidate is None or stock_twice else candidate
    launches = rng.standard_normal((num_campaigns, num_pairs, 2, 2)) * np.array([scenario.launch_noise, spread])
    logs += launches[..., None]
    logs[:, :, :, 1, :] -= gains[:, None, None, :]
    return np.exp(logs, out=logs)


def simulate(rng: np.random.Generator, num_campaigns: int, num_pairs: int, scenario: Scenario) -> Campaigns:
    """Campaigns of ``num_pairs`` swap pairs, each with a profile of 8 pairs."""
    gains, loses = request_gains(rng, num_campaigns, scenario)
    return Campaigns(
        seconds=measured_seconds(rng, gains, num_pairs, scenario),
        profile_seconds=measured_seconds(rng, np.zeros_like(gains), 8, scenario, stock_twice=True),
        gains=gains,
        loses=loses,
    )
