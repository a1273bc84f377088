"""``lossguard report``, and what a judged run leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lossguard.cli.main import run
from lossguard.cli.output import finish
from tests.report.sample import judged, report_of

REPORT = report_of([judged("faulty", [(at, 10 + at % 30) for at in range(40)])])
LINE = "lossguard: FAIL (1 fail, 0 inconclusive, 0 pass) -> exit 1"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with its report."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    made = tmp_path / "run-0008"
    made.mkdir()
    (made / "report.json").write_text(json.dumps(REPORT))
    return made


def test_without_a_form_it_is_the_terminals(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "NOT LOSSLESS  faulty against stock" in out
    assert LINE in out


def test_a_folder_and_its_file_give_the_same_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(folder), "--html"]) == 0
    page = folder / "report.html"
    assert f"report: {page}" in capsys.readouterr().out
    assert run(["report", str(folder / "report.json"), "--html", "--output", str(folder / "x.html")]) == 0
    assert page.read_bytes() == (folder / "x.html").read_bytes()


def test_junit_and_markdown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(folder), "--junit"]) == 0
    assert len(list(ElementTree.parse(folder / "report.xml").iter("failure"))) == 1
    capsys.readouterr()
    assert run(["report", str(folder), "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("### lossguard")
    assert run(["report", str(folder), "--markdown", "--output", str(folder / "x.md")]) == 0
    assert (folder / "x.md").read_text().startswith("### lossguard")


def test_github_by_request(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "s.md"))
    assert run(["report", str(folder), "--html", "--github"]) == 0
    assert "\n::error title=lossguard faulty/lossless::" in capsys.readouterr().out
    assert "report.html" in (folder / "s.md").read_text().replace("&#46;", ".").replace("&#45;", "-")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent"], "LG1801"),
        (["run-0008", "--html", "--junit", "--output", "x"], "--output"),
        (["run-0008", "--output", "x"], "--output"),
    ],
)
def test_what_does_not_fit_is_usage(
    arguments: list[str],
    words: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder.parent)
    assert run(["report", *arguments]) == 4
    assert words in capsys.readouterr().err
    assert not Path("x").exists()


def test_a_judged_run_leaves_its_page_and_names_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = {**REPORT, "run": {**REPORT["run"], "report_path": str(folder / "report.json")}}
    finish(report, folder / "copy.json")
    assert capsys.readouterr().out == f"\n{LINE}    report: {folder / 'report.html'}\n"
    assert (folder / "report.html").is_file()
    assert json.loads((folder / "copy.json").read_text()) == json.loads(json.dumps(report))


def test_in_github_a_judged_run_tells_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_OUTPUT", str(folder / "outputs"))
    finish({**REPORT, "run": {**REPORT["run"], "report_path": str(folder / "report.json")}}, None)
    assert capsys.readouterr().out.splitlines()[-1].startswith("::error title=lossguard faulty/lossless::")
    assert f"html={folder / 'report.html'}\n" in (folder / "outputs").read_text()
