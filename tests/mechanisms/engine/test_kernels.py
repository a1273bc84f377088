"""Triton kernels in triton's interpreter, where triton is installed: against torch's own operations.

In a process of its own, since the interpreter is chosen when triton is imported.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kernels_by_interpreter.py")
ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("part", ["attention", "delta", "trees", "convolution"])
def test_kernels_in_the_interpreter(part: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'mechanisms'}"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), part], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "agree" in done.stdout
