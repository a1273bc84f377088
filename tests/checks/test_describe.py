"""The moment estimate of rho at its edges."""

from __future__ import annotations

import numpy as np
import pytest

from lossguard.checks.describe import intraclass_correlation


def rho(sums: list[float], tokens: list[float]) -> float:
    return intraclass_correlation(np.array(sums), np.array(tokens))


def test_all_or_nothing_clusters_are_fully_correlated() -> None:
    assert rho([10.0, 0.0] * 50, [10.0] * 100) == pytest.approx(1.0)


def test_clusters_with_equal_shares_are_not() -> None:
    assert rho([1.0] * 50, [10.0] * 50) == 0.0


def test_it_is_kishs_estimate() -> None:
    """Five of ten clusters hold 4 of 10, the others none: share 0.2, spread 40 x 10 / 9, DEFF 2.78, rho 0.198."""
    assert rho([4.0, 0.0] * 5, [10.0] * 10) == pytest.approx((40 * 10 / 9 / 16 - 1) / 9)


@pytest.mark.parametrize(
    ("sums", "tokens"),
    [
        ([0.0, 0.0], [10.0, 10.0]),  # no mismatch
        ([10.0, 10.0], [10.0, 10.0]),  # nothing else
        ([5.0], [10.0]),  # one cluster
        ([1.0, 0.0], [1.0, 1.0]),  # one token each
        ([0.0, 0.0], [0.0, 0.0]),  # no token
    ],
)
def test_without_spread_it_is_zero(sums: list[float], tokens: list[float]) -> None:
    assert rho(sums, tokens) == 0.0
