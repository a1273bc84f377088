"""Hooks for conftest files and other plugins. None of them can turn a red verdict into a green one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lossguard.plan import SystemHandle


@pytest.hookspec
def pytest_lossguard_fingerprint(config: pytest.Config) -> Mapping[str, Any] | None:
    """Facts about this environment for the session's report, as JSON values. Called once, on the controller."""


@pytest.hookspec(firstresult=True)
def pytest_lossguard_engine(config: pytest.Config, name: str) -> SystemHandle | None:
    """The system of that name, where the configuration has none. Called where the test runs."""


@pytest.hookspec
def pytest_lossguard_verdict(config: pytest.Config, claim: str, verdict: str) -> None:
    """A claim's final status (PASS, FAIL, INCONCLUSIVE, LOST, ...): to observe only. Called on the controller."""


@pytest.hookspec
def pytest_lossguard_report(config: pytest.Config, report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Sections to add to the session's report, as JSON values; ``report`` is a copy. Called on the controller."""
