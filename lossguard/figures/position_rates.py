"""Mismatch rate by position in the reply, both arms, with two-sided 95 % intervals that respect clusters."""

from __future__ import annotations

from typing import Any

import numpy as np

from lossguard.checks.base import Arm, BoolArray, CheckInput, IntArray
from lossguard.checks.clusters import cluster_of_requests, position_of_tokens, request_sums, sum_by_cluster
from lossguard.checks.delta import is_mismatch
from lossguard.checks.proportions import binomial_lower, binomial_upper, design_effect

POSITIONS = ((0, 0), (1, 16), (17, 64), (65, 256), (257, 1024), (1025, 2048), (2049, None))
"""The buckets of CHECKS: fixed before any run."""
TAIL = 0.025


def position_rates(given: CheckInput) -> list[dict[str, Any]]:
    """JSON: a row per bucket that either arm reaches."""
    cluster = cluster_of_requests(given.requests)
    arms = {"candidate": given.candidate, "stock": given.stock}
    positions = {name: position_of_tokens(arm.scores) for name, arm in arms.items()}
    wrong = {name: is_mismatch(arm.scores, given.thresholds) for name, arm in arms.items()}
    rows = []
    for low, high in POSITIONS:
        inside = {name: (at >= low) & (at <= (np.inf if high is None else high)) for name, at in positions.items()}
        if any(mask.any() for mask in inside.values()):
            found = {name: _rate(arm, wrong[name], inside[name], cluster) for name, arm in arms.items()}
            rows.append({"first": low, "last": high, **found})
    return rows


def _rate(arm: Arm, wrong: BoolArray, inside: BoolArray, cluster: IntArray) -> dict[str, Any]:
    """Clopper-Pearson bounds of counts over their design effect (Rao and Scott 1992), a fraction of tokens."""
    sums = sum_by_cluster(request_sums(wrong & inside, arm.scores), cluster)
    tokens = sum_by_cluster(request_sums(inside, arm.scores), cluster)
    hits, total, effect = float(sums.sum()), float(tokens.sum()), float(design_effect(sums, tokens))
    return {
        "num_mismatches": int(hits),
        "num_tokens": int(total),
        "rate": hits / total if total else None,
        "lower_95": float(binomial_lower(hits / effect, total / effect, TAIL)),
        "upper_95": float(binomial_upper(hits / effect, total / effect, TAIL)),
    }
