"""The ready-made suite, run by name from an installed wheel's layout against a user's own configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "docs" / "examples" / "mechanism"
CONFIGURATION = """
model = "model"
[systems.stock]
engine = "callable"
target = "toylm:generate"
[systems.mine]
engine = "callable"
target = "toylm:lookup"
[scorer]
engine = "toylm_scorer:create"
[prompts]
sets = ["prompts.jsonl"]
"""
TIMEOUT_S = 240


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in a folder that has this repository's packages copied to ``site``, as an installation has."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "LOSSGUARD_B"))}
    paths = os.pathsep.join((str(folder / "site"), str(folder)))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": ""},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def suite(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The suite, by its name."""
    by_name = ("-p", "lossguard_pytest", "--pyargs", "lossguard_suites.losslessness")
    return run(folder, "-m", "pytest", *by_name, "--lossguard-baseline=stock", *arguments)


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A user's folder: configuration, a toy library, prompts; lossguard is elsewhere."""
    site = tmp_path / "site"
    site.mkdir()
    for package in (ROOT / "lossguard", ROOT / "suites" / "lossguard_suites"):
        shutil.copytree(package, site / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "lossguard_pytest.py", site)
    for name in ("toylm.py", "toylm_scorer.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    shutil.copy(EXAMPLE / "conftest.py", tmp_path / "make_data.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "lossguard.toml").write_text(CONFIGURATION)
    made = run(tmp_path, "-c", "import make_data; make_data.pytest_configure()")
    assert made.returncode == 0, made.stderr
    return tmp_path


def test_a_lossless_candidate_passes_at_its_own_and_at_another_batch_size(user: Path) -> None:
    done = suite(user, "--lossguard-candidate=mine", "--lossguard-budget=210x24", "-k", "greedy or batch_size[7]")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS  losslessness/greedy   mine against stock (live) " in done.stdout
    assert "PASS  losslessness/batch-7  mine-batch-7 against stock (live) " in done.stdout


def test_a_lossy_candidate_is_red(user: Path) -> None:
    source = user / "toylm.py"
    source.write_text(source.read_text().replace("ACCEPT_BEST = 1", "ACCEPT_BEST = 2"))
    done = suite(user, "--lossguard-candidate=mine", "--lossguard-budget=210x24", "-k", "greedy")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAIL  losslessness/greedy" in done.stdout


def test_without_a_candidate_nothing_passes(user: Path) -> None:
    done = suite(user)
    assert done.returncode not in (0, 5), done.stdout + done.stderr
    assert "LG0804" in done.stdout
    assert "PASS" not in done.stdout


def test_an_unknown_candidate_is_red(user: Path) -> None:
    done = suite(user, "--lossguard-candidate=mien", "-k", "batch_size")
    assert done.returncode not in (0, 5), done.stdout + done.stderr
    assert "LG0602" in done.stdout


def test_the_suite_makes_these_claims(user: Path) -> None:
    """Names are keys of records: renaming one loses a user's records."""
    done = suite(user)
    claims = ("batch-1", "batch-7", "greedy", "long-replies")
    assert [claim for claim in claims if f"losslessness/{claim} " not in done.stdout] == []
    assert done.stdout.count("  losslessness/") >= len(claims)
