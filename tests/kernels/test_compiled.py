"""Kernels over trees compile for a device that is not here.

Nothing spills, shared memory fits, and no product is laid over more rows than there are.

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
    ("architecture", "case", "kernels", "room"),
    [
        (90, "delta, 32 x 16 nodes", ("verify_kernel", "commit_kernel"), 99),
        (90, "delta, 32 x 32", ("relate_kernel", "verify_kernel", "commit_kernel", "defer_kernel"), 99),
        (90, "delta, 32 x 64 nodes", ("relate_kernel", "verify_kernel", "commit_kernel"), 99),
        (90, "growth", ("grow_kernel",), 99),
        (90, "attention 256, 16 nodes, 8 splits", ("attend_kernel", "merge_kernel", "compact_kernel"), 99),
        (90, "attention 256, 64 nodes, 1 splits", ("attend_kernel",), 227),
        (120, "attention 256, 64 nodes, 1 splits", ("attend_kernel",), 99),
    ],
)
def test_nothing_spills(architecture: int, case: str, kernels: tuple[str, ...], room: int, tmp_path: Path) -> None:
    path = ":".join(str(ROOT / part) for part in ("", "kernels", "mechanisms"))
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "benchmarks.tree_kernels_compiled", "--architecture", str(architecture)]
    done = subprocess.run(
        [*command, "--only", case, "--shared-kib", str(room)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(kernel in done.stdout for kernel in kernels)
