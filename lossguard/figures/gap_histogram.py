"""How far served tokens lie under the best one: both arms' gaps in bins of equal width on a logarithmic axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.delta import is_scored

EDGES_NATS = np.geomspace(1e-3, 1e2, 51)  # ten bins a decade


def gap_histogram(given: CheckInput) -> dict[str, Any]:
    """JSON: edges in nats, counts per arm, and how many tokens are the best one or lie beyond the edges."""
    limits = given.thresholds
    return {
        "edges_nats": [float(f"{edge:.6g}") for edge in EDGES_NATS],
        "candidate": _arm(given.candidate),
        "stock": _arm(given.stock),
        "delta_nats": [limits.q_nats, limits.delta_median_nats, limits.delta_max_nats],
        "event_nats": limits.event_nats,
    }


def _arm(arm: Arm) -> dict[str, Any]:
    usable = is_scored(arm.scores)
    gap = arm.scores.gap[usable].astype(np.float64)
    above = gap[gap > 0]
    counts, _ = np.histogram(above, bins=EDGES_NATS)
    return {
        "num_tokens": arm.scores.num_tokens,
        "num_best": int((gap <= 0).sum()),
        "num_below": int((above < EDGES_NATS[0]).sum()),
        "num_above": int((above > EDGES_NATS[-1]).sum()),
        "num_not_scored": int((~usable).sum()),
        "counts": counts.tolist(),
    }
