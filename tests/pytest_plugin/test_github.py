"""A session in GitHub Actions: summary, outputs and annotations of its claims."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

from tests.pytest_plugin.conftest import Project, claim

TESTS = claim("tree/p", "good") + claim("tree/f", "bad") + claim("tree/u", "unclear")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Where GitHub would have them."""
    summary, outputs = tmp_path / "github-summary.md", tmp_path / "github-output"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_OUTPUT", str(outputs))
    return summary, outputs


def test_red_claims_are_annotated_and_all_are_in_the_summary(
    both: Project, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(both.path))
    both.write(TESTS)
    done = both.run("--lossguard-json=out.json")
    assert done.code == 1
    lines = [line for line in done.out.splitlines() if line.startswith("::")]
    assert [line.partition("%0A")[0] for line in lines] == [
        "::error file=test_it.py,title=lossguard tree/f::NOT LOSSLESS  bad against stock: rate: made up",
        "::error file=test_it.py,title=lossguard tree/u::INCONCLUSIVE  unclear against stock: rate: made up",
    ]
    text = html.unescape(files[0].read_text())
    assert text.startswith(f"### {done.line}\n")
    rows = [line for line in text.splitlines() if line.startswith("| **")]
    assert [row.split("**")[1].split("  ")[0] for row in rows] == ["NOT LOSSLESS", "INCONCLUSIVE", "LOSSLESS"]
    assert "lossguard recheck run --candidate bad --request p0007 --position 31" in text
    assert files[1].read_text() == f"verdict=FAIL\nexit-code=1\nreport={both.path / 'out.json'}\n"


def test_a_required_claim_that_no_test_made_is_red_there_too(project: Project, files: tuple[Path, Path]) -> None:
    project.write(claim("tree/p", "good"))
    (project.path / "claims.txt").write_text("tree/p\ntree/absent\n")
    done = project.run("--lossguard-require=claims.txt")
    assert done.code == 1
    assert "::error title=lossguard tree/absent::INCONCLUSIVE  tree/absent: required, but no test" in done.out
    assert files[1].read_text().startswith("verdict=INCONCLUSIVE\nexit-code=1\n")


def test_an_advisory_session_warns(project: Project, files: tuple[Path, Path]) -> None:
    project.write(TESTS)
    done = project.run("--lossguard-advisory")
    assert done.code == 0
    assert done.out.count("\n::warning ") == 2
    assert "::error" not in done.out
    assert "ADVISORY" in html.unescape(files[0].read_text())


@pytest.mark.usefixtures("files")
def test_a_summary_that_cannot_be_written_is_red(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "absent" / "summary.md"))
    project.write(claim("tree/p", "good"))
    done = project.run()
    assert done.code == 1
    assert "GitHub's files were not written: LG0607" in done.line


def test_elsewhere_nothing_is_told(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    project.write(TESTS)
    assert "::error" not in project.run().out
