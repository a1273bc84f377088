"""The real gate over the toy stack, from ten lines of test to an exit code."""

from __future__ import annotations

import json

import pytest

from tests.baseline.toy_system import write_project
from tests.pytest_plugin.conftest import Project, claim

FAULTY = (
    "import dataclasses\nfrom tests.baseline.toy_system import engine\nfrom tests.gate.toy import bias_every_seventh\n"
    "def faulty(spec): return dataclasses.replace(engine(spec), faults=(bias_every_seventh(3.0),))\n"
)
# The power of 200 resampled comparisons takes longer than the rest; no test here looks at the figure.
QUICK_POWER = (
    "import dataclasses\nimport lossguard.gate as gate\nfrom lossguard.checks.power import estimate_power\n"
    "gate.estimate_power = lambda given: estimate_power(dataclasses.replace(given, num_replicates=20))\n"
)
SYSTEM = '[systems.faulty]\nengine = "toy_faults:faulty"\n'
ARGUMENTS = ("--lossguard-budget=210x24", "-p", "no:cacheprovider")


def write_toy(project: Project) -> None:
    """A toy model with a lossless and a faulty candidate, and no fake gate."""
    project.write(claim("toy/mine", "mine") + claim("toy/faulty", "faulty", above="@pytest.mark.xfail(strict=True)"))
    (project.path / "conftest.py").write_text(QUICK_POWER)
    write_project(project.path)
    (project.path / "toy_faults.py").write_text(FAULTY)
    with (project.path / "lossguard.toml").open("a") as file:
        file.write(SYSTEM)


def test_recorded_and_judged_by_two_workers(distributed: Project) -> None:
    write_toy(distributed)
    done = distributed.run("--lossguard-update=new", "-k", "mine", *ARGUMENTS)
    assert done.code == 0, done.out
    assert "recorded: 1" in done.line
    done = distributed.run("--lossguard-json=out.json", "-k", "mine", *ARGUMENTS)
    assert done.code == 0, done.out
    assert "lossguard: PASSED (1 pass, deselected claims: 1) -> exit 0" in done.line
    (entry,) = json.loads((distributed.path / "out.json").read_text())["claims"]
    assert entry["baseline_source"] == "record"
    assert {check["verdict"] for check in entry["evidence"]["checks"]} == {"PASS"}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["record", "live"])
def test_a_planted_fault_is_caught(project: Project, mode: str) -> None:
    write_toy(project)
    if mode == "record":
        assert "recorded: 2" in project.run("--lossguard-update=new", *ARGUMENTS).line
    done = project.run("--lossguard-json=out.json", *ARGUMENTS)
    assert done.code == 0, done.out
    assert "lossguard: PASSED (1 pass, 1 failed as expected) -> exit 0" in done.line
    claims = {entry["id"]: entry for entry in json.loads((project.path / "out.json").read_text())["claims"]}
    assert {entry["baseline_source"] for entry in claims.values()} == {mode}
    checks = {check["check"]: check["verdict"] for check in claims["toy/faulty"]["evidence"]["checks"]}
    assert checks["rate"] == "FAIL"
