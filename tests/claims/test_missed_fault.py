"""The claims guard something: a fault that is not there any more turns their run red."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIGURATION = ROOT / "tests" / "claims" / "lossguard.toml"
FAULTY, LOSSLESS = "tests.claims.replay:biased_ids", "tests.claims.replay:no_fault"


@pytest.mark.slow
def test_lossless_replies_behind_an_expected_failure_are_red(tmp_path: Path) -> None:
    text = CONFIGURATION.read_text(encoding="utf-8")
    assert text.count(FAULTY) == 1
    (tmp_path / "lossguard.toml").write_text(text.replace(FAULTY, LOSSLESS), encoding="utf-8")
    report = tmp_path / "report.json"
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "tests/claims/test_own_systems.py",
                "-k",
                "biased-ids",
                "--color=no",
                "-o",
                "addopts=--import-mode=importlib",
            ),
            *("-p", "no:cacheprovider", "-p", "lossguard_pytest", "--lossguard-baseline=stock"),
            *(f"--lossguard-config={tmp_path / 'lossguard.toml'}", f"--lossguard-json={report}"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # installed or not, the plugin is loaded once
        capture_output=True,
        text=True,
        check=False,
    )
    (claim,) = json.loads(report.read_text(encoding="utf-8"))["claims"]
    assert done.returncode == 1, done.stdout
    assert (claim["id"], claim["status"]) == ("own/biased-ids", "FAIL")
    assert "marked xfail, and the verdict is PASS" in done.stdout
    assert claim["baseline_source"] == "record"
