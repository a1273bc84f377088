"""Small projects whose pytest runs in a process of its own, as a user's does: plain, with -n0, with -n2."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CONFTEST = "from tests.pytest_plugin import fake_gate\nfake_gate.install()\n"
CONFIGURATION = 'model = "model"\n' + "".join(
    f'[systems.{name}]\nengine = "none"\n' for name in ("stock", "good", "bad", "unclear", "dead", "foreign")
)
CLOSING = re.compile(r"^lossguard: .* -> exit \d+$", re.MULTILINE)
TIMEOUT_S = 100


@dataclass
class Outcome:
    """How a project's pytest ended."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The closing line; empty if there is none. There is never more than one."""
        found: list[str] = CLOSING.findall(self.out)
        assert len(found) <= 1, found
        return found[0] if found else ""


@dataclass
class Project:
    """A folder with tests, a configuration of systems named after their verdicts, and the fake gate."""

    pytester: pytest.Pytester
    workers: tuple[str, ...] = ()

    def write(self, tests: str, *, conftest: str = "") -> None:
        """The project's files."""
        self.pytester.makeconftest(CONFTEST + conftest)
        self.pytester.makepyfile(test_it="import os, pytest\nfrom pathlib import Path\n\n" + tests)
        (self.path / "lossguard.toml").write_text(CONFIGURATION)

    def run(self, *arguments: str, baseline: str = "stock") -> Outcome:
        """Run pytest."""
        given = ("--lossguard-baseline", baseline) if baseline else ()
        xdist = ("-p", "xdist", *self.workers) if self.workers else ()
        done = self.pytester.runpytest_subprocess(
            "-p", "lossguard_pytest", *xdist, *given, *arguments, timeout=TIMEOUT_S
        )
        return Outcome(int(done.ret), done.stdout.str(), done.stderr.str())

    @property
    def path(self) -> Path:
        """The project's folder."""
        return self.pytester.path

    @property
    def served(self) -> list[str]:
        """What the fake gate was asked for."""
        path = self.path / "served.txt"
        return sorted(path.read_text().splitlines()) if path.exists() else []


def claim(name: str, candidate: str = "", *, body: str = "lossguard.assert_lossless()", above: str = "") -> str:
    """The source of a test that makes a claim."""
    given = f', candidate="{candidate}"' if candidate else ""
    words = re.sub(r"\W", "_", name)
    return f'{above}\n@pytest.mark.lossguard(claim="{name}"{given})\ndef test_{words}(lossguard):\n    {body}\n'


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project run without xdist."""
    for name in [name for name in os.environ if name.startswith(("LOSSGUARD_", "PYTEST_", "CUDA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # hundreds of processes import the same modules
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return Project(pytester)


PLAIN, ONE, TWO = pytest.param((), id="plain"), pytest.param(("-n0",), id="n0"), pytest.param(("-n2",), id="n2")


@pytest.fixture(params=[PLAIN, ONE, TWO])
def everywhere(request: pytest.FixtureRequest, project: Project) -> Project:
    """A project run in all three ways: verdicts and exit codes must be the same."""
    project.workers = request.param
    return project


@pytest.fixture(params=[PLAIN, pytest.param(("-n0",), id="n0", marks=pytest.mark.slow), TWO])
def both(request: pytest.FixtureRequest, project: Project) -> Project:
    """As ``everywhere`` for what is not about verdicts: -n0, which hardly differs from plain, is left to slow runs."""
    project.workers = request.param
    return project


@pytest.fixture
def distributed(project: Project) -> Project:
    """A project run with two workers."""
    project.workers = ("-n2",)
    return project
