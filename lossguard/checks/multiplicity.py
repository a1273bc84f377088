"""False discovery rate."""

from __future__ import annotations

import numpy as np

from lossguard.checks.base import FloatArray


def adjusted_p_values(p_values: FloatArray) -> FloatArray:
    """Benjamini-Hochberg adjusted p-values along the last axis; one at most q is a discovery at rate q.

    Source: Benjamini and Hochberg 1995, JRSS B 57, 289-300.
    """
    number = p_values.shape[-1]
    if number == 0:
        return p_values
    order = np.argsort(p_values, axis=-1, kind="stable")
    scaled = np.take_along_axis(p_values, order, axis=-1) * number / np.arange(1, number + 1)
    smallest = np.minimum.accumulate(scaled[..., ::-1], axis=-1)[..., ::-1]
    adjusted = np.empty_like(smallest)
    np.put_along_axis(adjusted, order, np.minimum(smallest, 1.0), axis=-1)
    return adjusted
