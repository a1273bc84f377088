"""What the rate check would say of a candidate with a given true excess: the curve behind the printed power."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lossguard.checks.base import FloatArray, Thresholds

_Z_PASS, _Z_FAIL = 1.6449, 2.3263  # one-sided 5 % and 1 %, as in checks.power
NUM_POINTS = 61


def power_curve(thresholds: Thresholds, power: Mapping[str, Any]) -> dict[str, Any]:
    """JSON: P(FAIL) and P(PASS) of the rate check over the true excess in points.

    The normal approximation of ``checks.power.detectable_excess``: independent arms, each of the run's tokens over
    the design effect. Its P(FAIL) is 90 % at the excess that the report prints.
    """
    effective = max(float(power["num_tokens"]), 1.0) / float(power["deff"])
    rate = max(thresholds.stock_rate, 0.5 / max(thresholds.num_tokens, 1))
    found = float(power["detectable_excess_points"]) / 100
    reach = 2 * (found if found < 1 else 0.5)
    excess = np.linspace(0.0, min(max(reach, 2 * thresholds.margin), 1.0 - rate), NUM_POINTS)
    error = np.sqrt(((rate + excess) * (1 - rate - excess) + rate * (1 - rate)) / effective)
    fail = _normal((excess - np.maximum(_Z_FAIL * error, thresholds.margin - _Z_PASS * error)) / error)
    passing = _normal((thresholds.margin - _Z_PASS * error - excess) / error)
    return {
        "excess_points": np.round(100 * excess, 6).tolist(),
        "fail_fraction": np.round(fail, 6).tolist(),
        "pass_fraction": np.round(passing, 6).tolist(),
        "margin_points": 100 * thresholds.margin,
        "detectable_excess_points": float(power["detectable_excess_points"]),
    }


def _normal(z: FloatArray) -> FloatArray:
    from scipy.special import ndtr

    return np.asarray(ndtr(z))
