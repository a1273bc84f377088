"""Whether Triton's interpreter runs the kernels, and what it cannot do."""

from __future__ import annotations

import importlib.util
import os

from lossguard_kernels.forests.failures import missing_triton

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""It multiplies the bit patterns of bf16 operands: there, operands of products are cast to float32, and change no
product. It cuts where a device rounds to bf16."""


def require_triton() -> None:
    """Raises UsageError LG1913."""
    if importlib.util.find_spec("triton") is None:
        raise missing_triton()
