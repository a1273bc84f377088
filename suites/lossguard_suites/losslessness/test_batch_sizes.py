"""The candidate at other batch sizes than the configured one, against stock as it is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lossguard_suites.losslessness.variants import with_batch_size

if TYPE_CHECKING:
    from lossguard.plan import SystemHandle
    from lossguard.pytest_plugin.fixtures import LossguardFixture


@pytest.fixture
def lossguard_system(request: pytest.FixtureRequest, batch_size: int) -> SystemHandle | None:
    """The session's candidate with another batch size."""
    return with_batch_size(request.config, batch_size)


@pytest.mark.parametrize(
    "batch_size",
    [
        pytest.param(1, marks=pytest.mark.lossguard(claim="losslessness/batch-1", budget="quick"), id="1"),
        pytest.param(7, marks=pytest.mark.lossguard(claim="losslessness/batch-7", budget="quick"), id="7"),
    ],
)
def test_batch_size(lossguard: LossguardFixture, batch_size: int) -> None:
    """One request at a time, and batches that are no power of two."""
    lossguard.assert_lossless()
