"""The paired comparison of mean clipped gaps, shared by calibration and the near-tie check."""

from __future__ import annotations

from collections.abc import Sequence

from lossguard.checks.base import Thresholds
from lossguard.checks.bounds import Comparison
from lossguard.checks.clusters import TokenColumn, cluster_of_requests, paired_sums
from lossguard.checks.delta import clipped_gap, delta_per_token
from lossguard.records import ForcedScores, Request


def near_tie_comparison(
    requests: Sequence[Request], candidate: ForcedScores, stock: ForcedScores, thresholds: Thresholds
) -> Comparison:
    """Sums per cluster of the gap clipped at delta (nats), and of the tokens where it is not zero."""
    cluster = cluster_of_requests(requests)
    gaps = [clipped_gap(scores, thresholds) for scores in (candidate, stock)]
    largest = [float(delta_per_token(scores, thresholds).max(initial=0.0)) for scores in (candidate, stock)]
    return Comparison(
        sums=paired_sums(
            cluster, TokenColumn(scores=candidate, values=gaps[0]), TokenColumn(scores=stock, values=gaps[1])
        ),
        hits=paired_sums(
            cluster, TokenColumn(scores=candidate, values=gaps[0] > 0), TokenColumn(scores=stock, values=gaps[1] > 0)
        ),
        largest_value=max(largest),
    )
