"""This repository's own claims. A faulty system is expected to fail: a missed fault turns the run red.

``make claims`` judges recorded replies; with ``live.toml`` the same claims are made on live systems.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lossguard.pytest_plugin.fixtures import LossguardFixture

BUDGET = "240x32x80"


def lossless(candidate: str) -> object:
    """A system that must get PASS."""
    return pytest.param(
        id=candidate,
        marks=pytest.mark.lossguard(claim=f"own/{candidate}", candidate=candidate, budget=BUDGET),
    )


def faulty(candidate: str) -> object:
    """A system that must get FAIL: PASS and INCONCLUSIVE are both red."""
    claim = pytest.mark.lossguard(claim=f"own/{candidate}", candidate=candidate, budget=BUDGET)
    missed_fault_is_red = pytest.mark.xfail(strict=True, raises=pytest.fail.Exception, reason="a planted fault")
    return pytest.param(id=candidate, marks=(claim, missed_fault_is_red))


@pytest.mark.parametrize(
    (),
    [
        faulty("biased-ids"),
        faulty("swapped-ties"),
        lossless("prompt-lookup"),
        lossless("other-batches"),
        faulty("wrong-token"),
        faulty("cut-replies"),
    ],
)
def test_own_systems(lossguard: LossguardFixture) -> None:
    lossguard.assert_lossless()
