"""Kernels over trees compile for a device that is not here: nothing spills, and shared memory fits the smaller devices.

In a process of its own, since the interpreter is chosen when triton is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("architecture", "case", "kernels"),
    [
        (90, "delta, 32 x 16 nodes", ("verify_kernel", "commit_kernel")),
        (90, "delta, 32 x 64 nodes", ("verify_kernel", "commit_kernel")),
        (90, "attention 256, 16 nodes, 8 splits", ("attend_kernel", "merge_kernel", "compact_kernel")),
        (120, "attention 256, 64 nodes, 1 splits", ("attend_kernel",)),
    ],
)
def test_nothing_spills(architecture: int, case: str, kernels: tuple[str, ...], tmp_path: Path) -> None:
    path = ":".join(str(ROOT / part) for part in ("", "kernels", "mechanisms"))
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "benchmarks.tree_kernels_compiled", "--architecture", str(architecture)]
    done = subprocess.run(
        [*command, "--only", case], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(kernel in done.stdout for kernel in kernels)
