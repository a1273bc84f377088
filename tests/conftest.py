"""Fixtures for the whole test suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from lossguard.models import default_model_path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The folder of the built-in model. Fails, never skips, where the package with its weights is missing."""
    return default_model_path()
