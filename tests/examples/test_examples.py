"""The examples of the documentation run as they are written, and notice when their mechanism is broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "docs" / "examples"
TIMEOUT_S = 240


@dataclass(frozen=True)
class Project:
    """A copy of the mechanism's project."""

    path: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python in it as its author would, with lossguard installed."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "LOSSGUARD_B"))}
        paths = os.pathsep.join(map(str, (ROOT, ROOT / "suites", self.path)))
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.path,
            env={**kept, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": ""},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Its tests."""
        return self.run("-m", "pytest", "-p", "lossguard_pytest", "--lossguard-baseline=stock", *arguments)

    def make_lossy(self) -> None:
        """Accept drafts that are only second best."""
        source = self.path / "toylm.py"
        text = source.read_text()
        assert text.count("ACCEPT_BEST = 1") == 1
        source.write_text(text.replace("ACCEPT_BEST = 1", "ACCEPT_BEST = 2"))

    def make_data(self) -> None:
        """Model and prompts."""
        made = self.run("-c", "import conftest; conftest.pytest_configure()")
        assert made.returncode == 0, made.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """The example in a folder of its own."""
    shutil.copytree(
        EXAMPLES / "mechanism", tmp_path / "project", ignore=shutil.ignore_patterns("model", "*.jsonl", ".*")
    )
    return Project(tmp_path / "project")


def test_the_mechanism_passes(project: Project) -> None:
    done = project.pytest()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS  lookup/greedy" in done.stdout
    assert "lossguard: PASSED (1 pass) -> exit 0" in done.stdout


def test_a_lossy_mechanism_is_red(project: Project) -> None:
    project.make_lossy()
    done = project.pytest()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAIL  lookup/greedy" in done.stdout
    assert "lossguard: FAILED (1 fail, 0 inconclusive, 0 lost) -> exit 1" in done.stdout


def test_the_agent_loop_promotes_a_lossless_patch_and_no_other(project: Project) -> None:
    project.make_data()
    step = (str(EXAMPLES / "agent_loop" / "agent_loop.py"), "toylm:lookup", "--budget", "210x24")
    good = project.run(*step)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "promoted: toylm:lookup is lossless" in good.stdout
    project.make_lossy()
    bad = project.run(*step)
    assert bad.returncode == 1, bad.stdout + bad.stderr
    assert "not promoted: toylm:lookup is FAIL" in bad.stdout
    assert "rate FAIL" in bad.stdout


def test_the_mechanism_stays_small() -> None:
    assert len((EXAMPLES / "mechanism" / "toylm.py").read_text().splitlines()) < 100
