"""The candidate as it is configured: what most changes must show, and what an optimisation must."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lossguard.pytest_plugin.fixtures import LossguardFixture


@pytest.mark.lossguard(claim="timing/not-slower")
def test_not_slower(lossguard: LossguardFixture) -> None:
    """At most 1 % slower than stock."""
    lossguard.assert_not_slower(margin=0.01)


@pytest.mark.lossguard(claim="timing/faster")
def test_faster(lossguard: LossguardFixture) -> None:
    """Faster by more than 1 % + 2 x noise."""
    lossguard.assert_faster()
