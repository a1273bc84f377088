"""An xdist worker: it runs tests, sends what they found, and at its end how much that was. It decides nothing."""

from __future__ import annotations

import os
from typing import Any

import pytest

from lossguard.errors import LossguardError
from lossguard.pytest_plugin.devices import require_lease
from lossguard.pytest_plugin.options import Settings
from lossguard.pytest_plugin.session import ItemRunner
from lossguard.pytest_plugin.transport import WORKER_DEVICE, WORKER_OUTPUT, encode


class Worker(ItemRunner):
    """Hooks of a worker."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        super().__init__(config, settings)
        self._usage_error = ""
        given: dict[str, Any] = config.workerinput  # type: ignore[attr-defined]
        require_lease(given.get(WORKER_DEVICE), os.environ)

    def refuse(self, error: LossguardError, items: list[pytest.Item]) -> None:
        """The controller ends the session with the error; until then this worker has nothing to run."""
        self._usage_error = str(error)
        items.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Before xdist sends the ids: what was refused is not run."""
        if not self._usage_error:
            self.check_records(session.items)
        if self._usage_error:
            session.items.clear()

    def pytest_sessionfinish(self) -> None:
        """How many verdicts were sent, of which claims: the controller compares."""
        output: dict[str, Any] = self.config.workeroutput  # type: ignore[attr-defined]
        output[WORKER_OUTPUT] = encode(
            {
                "num_verdicts": self.num_verdicts,
                "claims": self.claims,
                "usage_error": self._usage_error,
                "num_deselected": self.num_deselected,
                "skipped_modules": self.skipped_modules,
            }
        )
