"""``--lossguard-html``: a page for the session, and files that say what the exit code says."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from tests.pytest_plugin.conftest import Project, claim

TESTS = claim("tree/p", "good") + claim("tree/f", "bad")


def test_the_page_has_an_index_and_the_closing_line(both: Project) -> None:
    both.write(TESTS)
    done = both.run("--lossguard-html=out.html")
    assert done.code == 1
    text = html.unescape((both.path / "out.html").read_text())
    assert f"<bdi>{done.line}</bdi></h1>" in text
    assert text.index('<a href="#claim-1"><bdi>tree/f') < text.index('<a href="#claim-2"><bdi>tree/p')
    assert "lossguard recheck run --candidate bad --request p0007 --position 31" in re.sub("<[^>]+>", "", text)
    assert f"report of this session: {both.path / 'out.html'}" in done.out


def test_it_is_a_setting_too_and_an_old_page_goes(project: Project) -> None:
    project.write(claim("tree/p", "good") + "def test_dies(): os._exit(0)\n")
    (project.path / "pytest.ini").write_text("[pytest]\nlossguard_html = out.html\n")
    (project.path / "out.html").write_text("an earlier session's")
    project.run()
    assert not (project.path / "out.html").exists()


def test_a_page_that_cannot_be_written_is_red_in_the_json_too(project: Project) -> None:
    project.write(claim("tree/p", "good"))
    done = project.run("--lossguard-html=absent/out.html", "--lossguard-json=out.json")
    assert done.code == 1
    assert "out.html was not written: LG0607" in done.line
    assert json.loads((project.path / "out.json").read_text())["outcome"]["line"] == done.line


def test_the_page_says_so_if_the_json_cannot_be_written(project: Project) -> None:
    project.write(claim("tree/p", "good"))
    done = project.run("--lossguard-html=out.html", "--lossguard-json=absent/out.json")
    assert done.code == 1
    assert done.line in html.unescape((project.path / "out.html").read_text())


def test_github_is_told_last(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "outputs"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    project.write(claim("tree/p", "good"))
    assert project.run("--lossguard-json=absent/out.json").code == 1
    assert "exit-code=1" in (tmp_path / "outputs").read_text()


def test_what_github_could_not_be_told_is_red_in_the_json_too(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "absent" / "summary.md"))
    project.write(claim("tree/p", "good"))
    done = project.run("--lossguard-json=out.json")
    assert done.code == 1
    assert json.loads((project.path / "out.json").read_text())["outcome"]["exit_code"] == 1


def test_github_is_told_where_the_page_is(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = tmp_path / "github-output"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_OUTPUT", str(outputs))
    project.write(claim("tree/p", "good"))
    project.run("--lossguard-html=out.html")
    assert f"html={project.path / 'out.html'}\n" in outputs.read_text()
