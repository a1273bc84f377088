"""What the timing statistics take in and give out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lossguard.records import Verdict

Estimand = Literal["population", "suite", "throughput"]
Metric = Literal["latency", "ttft", "inter_token"]
LaunchRule = Literal["profile", "pooled", "largest"]
STOCK, CANDIDATE = 0, 1

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTimes:
    """Seconds of M swap pairs: axes are pair, run of the pair, arm (stock, candidate), request.

    Within a run both arms serve the same N requests at the same time, each on its own device; between the two runs
    of a pair the devices are exchanged. ``device`` says which. On one device the arms of a "run" follow one another,
    and a swap pair is an ABBA block: ``design`` names it.
    """

    seconds: NDArray[np.float64]  # [M, 2, 2, N] sent to last token, > 0
    device: NDArray[np.int64]  # [M, 2, 2] index of the device
    num_tokens: NDArray[np.int64]  # [M, 2, 2, N] reply tokens, counted by the client
    strata: tuple[str, ...]  # [N] prompt-length x output-length x set of each request
    metric: Metric  # what ``seconds`` holds; only latency is shared out
    design: Literal["two-device", "one-device"] = "two-device"

    @property
    def num_pairs(self) -> int:
        """Complete swap pairs, M."""
        return int(self.seconds.shape[0])

    @property
    def num_requests(self) -> int:
        """Requests of a run, N."""
        return int(self.seconds.shape[3])


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseProfile:
    """Stock against stock through the same pipeline: mean log ratios of its swap pairs, in nats (0.01 is about 1 %)."""

    pair_means: tuple[float, ...]
    pair_throughputs: tuple[float, ...] | None = None  # log ratios of total time, for the throughput estimand
    request_sd: float | None = None  # nats; one request's log ratio around the mean of its pair
    stock_levels: tuple[float, ...] = ()  # [M0] mean log seconds of stock in each pair, for the control chart
    keeps_launches: bool = False  # processes stay alive over all pairs (``relaunch = "reset"``)

    @property
    def num_pairs(self) -> int:
        """Swap pairs of the profile, M0; also the degrees of freedom of its rms."""
        return len(self.pair_means)

    @property
    def rms(self) -> float:
        """omega: root mean square about 0, which is the true mean by symmetry (loop_timing 3.2)."""
        return float(np.sqrt(np.mean(np.square(self.pair_means))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A gain with its bounds, as log time ratios stock over candidate (positive: the candidate is faster)."""

    estimand: Estimand
    log_gain: float
    standard_error: float
    degrees_of_freedom: float
    log_lower: float  # one-sided 95 %
    log_upper: float  # one-sided 95 %
    variance_parts: Mapping[str, float] = field(default_factory=dict)
    launch_rule: LaunchRule = "profile"
    confidence: float = 0.95  # of each one-sided bound
    num_pairs: int = 0
    num_requests: int = 0
    per_token: bool = False  # times were divided by the reply's tokens
    reasons: tuple[str, ...] = ()  # how each automatic choice was made

    @property
    def gain(self) -> float:
        """exp(log_gain) - 1."""
        return float(np.expm1(self.log_gain))

    @property
    def gain_lower(self) -> float:
        """exp(log_lower) - 1."""
        return float(np.expm1(self.log_lower))

    @property
    def gain_upper(self) -> float:
        """exp(log_upper) - 1."""
        return float(np.expm1(self.log_upper))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingVerdict:
    """The verdict of a timing rule with everything that entered it."""

    rule: Literal["faster", "not-slower"]
    verdict: Verdict
    reasons: tuple[str, ...]
    threshold: float  # gain that the lower bound had to exceed (a fraction: 0.01 is 1 %)
    estimate: Estimate
    evidence: Mapping[str, Any] = field(default_factory=dict)
