"""The O'Brien-Fleming boundary of a plan's looks, by numerical integration (Armitage, McPherson and Rowe 1969)."""

from __future__ import annotations

import functools

import numpy as np
from scipy import optimize, special

from lossguard.timing.base import FloatArray

_TAIL = 8.0  # standard deviations that the grid reaches below 0
_NODES_PER_DEVIATION = 5  # of the smallest increment between looks


@functools.lru_cache(maxsize=64)
def obrien_fleming_constant(looks: tuple[int, ...], alpha: float) -> float:
    """C such that P(Z_m > C sqrt(m_last / m) at any look m) = alpha with no effect.

    ``looks``: numbers of pairs, increasing. O'Brien and Fleming (1979): on the scale of the sum the boundary is flat.
    """
    low, high = 0.0, float(special.ndtri(1 - alpha / (2 * len(looks)))) + 1.0
    found = optimize.brentq(lambda constant: crossing_probability(looks, constant) - alpha, low, high, xtol=1e-7)
    return float(found)


def crossing_probability(looks: tuple[int, ...], constant: float, *, drift: float = 0.0) -> float:
    """P(the sum of m pairs exceeds C sqrt(m_last) at any look); a pair has mean ``drift`` and variance 1."""
    limit = constant * np.sqrt(looks[-1])
    low = -_TAIL * np.sqrt(looks[-1]) + min(drift, 0.0) * looks[-1]
    steps = np.diff(looks, prepend=0)
    nodes, weights = _gauss_legendre(int(_NODES_PER_DEVIATION * (limit - low) / np.sqrt(steps.min())) + 32)
    half = (limit - low) / 2
    grid, weights = low + half * (nodes + 1), half * weights
    density = _normal(grid, drift * looks[0], looks[0])
    kernels = {
        step: _normal(grid[:, None] - grid[None, :], drift * step, step) * weights for step in set(steps[1:].tolist())
    }
    for step in steps[1:].tolist():
        density = kernels[step] @ density
    return float(1.0 - weights @ density)


@functools.lru_cache(maxsize=16)
def _gauss_legendre(size: int) -> tuple[FloatArray, FloatArray]:
    nodes, weights = np.polynomial.legendre.leggauss(size)
    return nodes, weights


def _normal(value: FloatArray, mean: float, variance: float) -> FloatArray:
    return np.asarray(np.exp(-((value - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance))
