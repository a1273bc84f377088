"""What a run looked like: sizes, clustering of mismatches, share of diverging requests."""

from __future__ import annotations

from typing import Any

import numpy as np

from lossguard.checks.base import Arm, CheckInput, FloatArray, Thresholds
from lossguard.checks.clusters import cluster_of_requests, request_sums, sum_by_cluster
from lossguard.checks.delta import is_mismatch
from lossguard.checks.proportions import design_effect
from lossguard.checks.vacuity import diverging_share


def intraclass_correlation(sums: FloatArray, tokens: FloatArray) -> float:
    """Moment estimate of rho from the design effect before flooring, kept in [0, 1]; 0 without a mismatch.

    DEFF = 1 + (sum n^2 / sum n - 1) rho (Kish 1965, chapter 5.4, for unequal clusters).
    """
    total = float(tokens.sum())
    share = float(sums.sum()) / total if total > 0 else 0.0
    size = float(np.square(tokens).sum()) / total if total > 0 else 0.0
    if not 0 < share < 1 or size <= 1 or len(sums) < 2:
        return 0.0
    spread = float(np.square(sums - share * tokens).sum()) * len(sums) / (len(sums) - 1)
    return float(np.clip((spread / (share * (1 - share) * total) - 1) / (size - 1), 0.0, 1.0))


def describe_run(given: CheckInput) -> dict[str, Any]:
    """JSON: sizes of both arms, DEFF and rho (the larger of both arms), concentration, divergence."""
    arms = {
        "candidate": _describe(given.candidate, given.thresholds, cluster_of_requests(given.requests)),
        "stock": _describe(given.stock, given.thresholds, cluster_of_requests(given.requests)),
    }
    flat = {f"{key}_{name}": value for name, row in arms.items() for key, value in row.items()}
    return {
        "num_requests": len(given.requests),
        "num_clusters": len({request.cluster for request in given.requests}),
        **flat,
        "deff": max(row["deff"] for row in arms.values()),
        "rho": max(row["rho"] for row in arms.values()),
        "largest_request_share": max(row["largest_request_share"] for row in arms.values()),
        "diverging_fraction": diverging_share(given),
    }


def _describe(arm: Arm, thresholds: Thresholds, cluster: np.ndarray) -> dict[str, Any]:
    by_request = request_sums(is_mismatch(arm.scores, thresholds), arm.scores)
    sums, tokens = sum_by_cluster(by_request, cluster), sum_by_cluster(np.diff(arm.scores.offsets), cluster)
    total = float(by_request.sum())
    return {
        "num_tokens": arm.scores.num_tokens,
        "num_mismatches": int(total),
        "deff": float(design_effect(sums, tokens)),
        "rho": intraclass_correlation(sums, tokens),
        "largest_request_share": float(by_request.max(initial=0.0)) / total if total else 0.0,
    }
