"""Every pytest run in the environment pays for the plugin's door, so it must cost next to nothing."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import lossguard_pytest
from tests.pytest_plugin.conftest import ROOT, Project, claim

HEAVY = {"torch", "numpy", "scipy", "rich", "safetensors", "lossguard.gate", "lossguard.pytest_plugin.session"}
BUDGET_US = 10_000
DUMP = (
    "import json, sys\n\ndef pytest_unconfigure(config):\n"
    "    with open('modules.json', 'w') as file: json.dump(sorted(sys.modules), file)\n"
)


def test_the_module_names_only_pytest_and_the_standard_library() -> None:
    """Import-linter takes packages only, so the door's rule is held here: lossguard comes in inside functions."""
    tree = ast.parse(Path(lossguard_pytest.__file__).read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    assert "argparse" in found
    assert found - set(sys.stdlib_module_names) == {"pytest"}


def import_cost_us() -> int:
    """Microseconds that the module adds to a process that has pytest."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import pytest, lossguard_pytest"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    found = re.search(r"\| +(\d+) \| lossguard_pytest$", done.stderr, re.MULTILINE)
    assert found is not None, done.stderr[-500:]
    return int(found[1])


def test_the_module_costs_less_than_its_budget() -> None:
    assert min(import_cost_us() for _ in range(3)) < BUDGET_US


def test_a_plain_session_imports_nothing_heavy(project: Project) -> None:
    project.write("def test_other(): pass\n")
    (project.path / "conftest.py").write_text(DUMP)
    assert project.run(baseline="").code == 0
    loaded = set(json.loads((project.path / "modules.json").read_text()))
    assert "lossguard_pytest" in loaded
    assert loaded & HEAVY == set()


def test_deciding_imports_nothing_heavy(project: Project) -> None:
    """Only where a test asks for a verdict is the gate imported; here it is the fake one."""
    project.write(claim("p", "good"), conftest=DUMP)
    assert project.run().code == 0
    loaded = set(json.loads((project.path / "modules.json").read_text()))
    assert "lossguard.pytest_plugin.session" in loaded
    assert loaded & (HEAVY - {"lossguard.gate", "lossguard.pytest_plugin.session"}) == set()
