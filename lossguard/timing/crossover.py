"""The crossover itself: is it one, and what does it say per request, per pair and about the devices?

Model of log seconds of request i in arm s: ``mu_i - [s = candidate] theta_i + device + period + launch + noise``.
Both arms of a run share the period, and the devices are exchanged inside a pair, so both cancel in the half sum of the
two runs' log ratios (2x2 crossover, Jones and Kenward, Design and Analysis of Cross-Over Trials, chapter 2).
"""

from __future__ import annotations

import numpy as np

from lossguard.errors import UsageError
from lossguard.timing.base import CANDIDATE, STOCK, FloatArray, PairTimes


def check_pairs(times: PairTimes) -> None:
    """Refuse arrays that are no crossover.

    Raises
    ------
    UsageError
        LG1050: shapes, times or token counts make no sense. LG1051: the devices of a pair were not exchanged.
    """
    num_pairs, num_requests = times.seconds.shape[0], times.seconds.shape[-1]
    shapes_fit = (
        times.seconds.shape == times.num_tokens.shape == (num_pairs, 2, 2, num_requests)
        and times.device.shape == (num_pairs, 2, 2)
        and len(times.strata) == num_requests
    )
    if not shapes_fit or num_pairs == 0 or num_requests == 0:
        _refuse(f"times of shape {times.seconds.shape}, {len(times.strata)} strata, devices {times.device.shape}")
    if not (np.isfinite(times.seconds).all() and (times.seconds > 0).all() and (times.num_tokens > 0).all()):
        _refuse("a time that is not a positive number, or a reply without a token")
    if times.design == "two-device":
        _check_exchange(times)


def _refuse(found: str) -> None:
    raise UsageError(
        found,
        why="a request that failed or was never served has no time; a mean over the rest would reward failing",
        fix="give complete pairs only: [pairs, 2 runs, 2 arms, requests], every request served by both arms",
        code="LG1050",
    )


def _check_exchange(times: PairTimes) -> None:
    first, second = times.device[:, 0], times.device[:, 1]
    exchanged = (first == second[:, ::-1]).all(axis=1) & (first[:, STOCK] != first[:, CANDIDATE])
    if not exchanged.all():
        raise UsageError(
            f"pairs {np.flatnonzero(~exchanged).tolist()} did not exchange the devices between their runs",
            why="the difference between two devices would be taken for a gain (an unswapped bound covers 0 %)",
            fix="let stock run on A then B while the candidate runs on B then A, or declare the one-device design",
            code="LG1051",
        )


def log_ratios(seconds: FloatArray) -> FloatArray:
    """log stock - log candidate, averaged over the two runs of each pair: [..., M, 2, 2, N] -> [..., M, N]."""
    logs = np.log(seconds)
    runs = logs[..., STOCK, :] - logs[..., CANDIDATE, :]
    return np.asarray(0.5 * (runs[..., 0, :] + runs[..., 1, :]))


def log_throughputs(seconds: FloatArray) -> FloatArray:
    """Log ratio of total time, averaged over the two runs of each pair: [..., M, 2, 2, N] -> [..., M]."""
    totals = np.log(seconds.sum(axis=-1))
    return np.asarray((totals[..., STOCK] - totals[..., CANDIDATE]).mean(axis=-1))


def judged_seconds(times: PairTimes, *, per_token: bool) -> FloatArray:
    """[M, 2, 2, N] seconds of a request, or of a token of its reply where outputs diverge.

    Time to first token and time between tokens do not grow with the reply and are never divided.
    """
    check_pairs(times)
    return times.seconds / times.num_tokens if per_token and times.metric == "latency" else times.seconds


def divergence(times: PairTimes) -> tuple[bool, str]:
    """Whether any reply's length differs from that of stock in the pair's first run, and the reason in words.

    Ids are not seen here: a caller that knows of diverging ids says so itself.
    """
    counts = times.num_tokens
    differs = (counts != counts[:, :1, STOCK : STOCK + 1]).any(axis=(1, 2))  # [M, N]
    if not differs.any():
        return False, "every reply has as many tokens as stock's reply to the same request"
    requests = int(differs.any(axis=0).sum())
    return True, f"{requests} of {times.num_requests} requests got replies of different lengths: time per token, 3 %"
