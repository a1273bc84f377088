"""The built wheel: everything that a newcomer needs is in it, and a verdict comes out of an empty project."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SHIPPED = {
    "kernels/lossguard_kernels": "lossguard_kernels",
    "lossguard": "lossguard",
    "mechanisms/lossguard_mechanisms": "lossguard_mechanisms",
    "suites/lossguard_suites": "lossguard_suites",
    "fixtures/stock-statistics": "lossguard/selftest/stock-statistics",
}
DATA = {
    "lossguard/demo.toml",
    "lossguard/demo_smollm2.toml",
    "lossguard/py.typed",
    "lossguard/report/html/page.css",
    "lossguard/report/html/page.html.jinja",
    "lossguard/report/schema/report-1.json",
    "lossguard/report/schema/session-1.json",
    "lossguard_kernels/py.typed",
    "lossguard_kernels/w12_gemm/gemm.cu",
    "lossguard_kernels/w12_gemm/memory.cu",
    "lossguard_mechanisms/py.typed",
}
TIMEOUT_S = 300

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content: what ``pip install --no-deps --target`` would make of it."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in a folder of its own, with the wheel's content and nothing of this tree on its path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "LOSSGUARD"))}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(installed), "LOSSGUARD_CACHE": str(folder / "cache"), "CI": ""},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_every_module_and_data_file_is_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {"lossguard_pytest.py"}
    for folder, package in SHIPPED.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                expected.add(f"{package}/{path.relative_to(ROOT / folder).as_posix()}")
    assert names == expected
    assert expected >= DATA


def test_its_metadata_is_what_the_project_declares(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        headers = HeaderParser().parsestr(archive.read(metadata).decode())
        points = configparser.ConfigParser(delimiters=("=",))
        points.read_string(archive.read(metadata.replace("METADATA", "entry_points.txt")).decode())
    project = PYPROJECT["project"]
    declared = {"console_scripts": project["scripts"], **project["entry-points"]}
    assert {group: dict(points[group]) for group in points.sections()} == declared
    required = headers.get_all("Requires-Dist") or []
    assert sorted(entry for entry in required if "extra ==" not in entry) == sorted(project["dependencies"])
    assert set(headers.get_all("Provides-Extra") or []) == set(project["optional-dependencies"])


def test_a_newcomer_gets_a_verdict(installed: Path, tmp_path: Path) -> None:
    """The plugin is found through its entry point; nobody names it with ``-p``."""
    ignored = shutil.ignore_patterns("model", "*.jsonl", ".*")
    shutil.copytree(ROOT / "docs" / "examples" / "mechanism", tmp_path / "project", ignore=ignored)
    where = run(installed, tmp_path / "project", "-c", "import lossguard_pytest, lossguard as it; print(it.__file__)")
    assert where.stdout.startswith(str(installed)), where.stdout + where.stderr
    done = run(installed, tmp_path / "project", "-m", "pytest", "--lossguard-baseline=stock", "-p", "no:randomly")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lossguard: PASSED (1 pass) -> exit 0" in done.stdout


def test_the_ready_made_suite_is_found(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "lossguard.toml").write_text('model = "m"\nsystems.stock = { engine = "callable", target = "a:b" }\n')
    arguments = ("-m", "pytest", "--pyargs", "lossguard_suites.losslessness", "--collect-only", "-q")
    done = run(installed, tmp_path, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_as_configured.py::test_greedy" in done.stdout


def test_the_command_line_starts(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "-c", "from lossguard.cli import main; main()", "--help")
    assert done.returncode == 0, done.stderr
    assert "baseline" in done.stdout


def test_the_demo_says_that_a_wheel_has_no_weights(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "-c", "from lossguard.cli import main; main()", "demo")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "LG0407" in done.stderr
    assert "lossguard demo --target smollm2" in done.stderr
