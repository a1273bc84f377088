"""Fixtures for the whole test suite."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lossguard.models import default_model_path

# Triton reads it when it is first imported, which any test may do. With a GPU its kernels run there.
if not Path("/proc/driver/nvidia/version").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The folder of the built-in model. Fails, never skips, where the package with its weights is missing."""
    return default_model_path()
