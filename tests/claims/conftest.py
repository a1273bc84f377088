"""Claims are made only where a baseline is given: without one every claim would be INCONCLUSIVE.

``pytest tests/claims`` without the option collects nothing and exits 5.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder out of runs that judge nothing."""
    return None if config.getoption("lossguard_baseline", None) else True
