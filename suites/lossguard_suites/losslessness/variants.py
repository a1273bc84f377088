"""The session's candidate under other options."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lossguard.config import load_config
from lossguard.engines.registry import engine_factory
from lossguard.plan import SystemHandle
from lossguard.pytest_plugin.options import Settings

if TYPE_CHECKING:
    import pytest


def with_batch_size(config: pytest.Config, batch_size: int) -> SystemHandle | None:
    """The candidate of ``--lossguard-candidate`` with this ``batch_size``; None where no candidate is given.

    Raises UsageError LG0601 to LG0603 for the configuration; engines without the option refuse it when they start.
    """
    settings = Settings.of(config)
    if settings.candidate is None:
        return None
    system = load_config(settings.config).system(settings.candidate)
    changed = replace(
        system, name=f"{system.name}-batch-{batch_size}", options={**system.options, "batch_size": batch_size}
    )
    return SystemHandle(config=changed, create=engine_factory(system.engine))
