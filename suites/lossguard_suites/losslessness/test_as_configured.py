"""The candidate as it is configured, greedy, on all prompt sets pooled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lossguard.pytest_plugin.fixtures import LossguardFixture


@pytest.mark.lossguard(claim="losslessness/greedy")
def test_greedy(lossguard: LossguardFixture) -> None:
    """At the session's budget."""
    lossguard.assert_lossless()


@pytest.mark.lossguard(claim="losslessness/long-replies", budget="200x1100")
def test_long_replies(lossguard: LossguardFixture) -> None:
    """Beyond position 1,024, where caches grow, windows slide and rotary tables end."""
    lossguard.assert_lossless()
