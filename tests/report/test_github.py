"""GitHub Actions: escaped, within its limits, appended."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.report.github import annotation_lines, is_github, write_github
from lossguard.report.markdown import LIMIT_BYTES, plain, render_markdown
from tests.report.sample import judged, renamed, report_of

FAULTY = judged("faulty", [(at, 10 + at % 30) for at in range(40)])


def test_an_annotation_names_claim_check_and_token() -> None:
    (line,) = annotation_lines(report_of([FAULTY]))
    assert line.startswith("::error title=lossguard faulty/lossless::NOT LOSSLESS  faulty against stock: ")
    assert "event%3A" not in line, "a colon is escaped in properties only"
    assert "%0Arequest r-0000, position 10: served 10" in line
    assert "\n" not in line


def test_what_passes_is_not_annotated() -> None:
    assert annotation_lines(report_of([judged()])) == []


def test_there_are_never_more_than_ten_annotations() -> None:
    lines = annotation_lines(report_of([renamed(FAULTY, f"f{at}") for at in range(30)]))
    assert len(lines) == 10
    assert lines[-1] == "::error title=lossguard::and 21 more claims that are not PASS"


def test_a_name_cannot_begin_another_command() -> None:
    (line,) = annotation_lines(report_of([renamed(FAULTY, "x,file=/etc::error ::\r\n::set-output name=a::b%")]))
    assert "\r" not in line
    assert "\n" not in line
    title = line.removeprefix("::error title=").partition("::")[0]
    assert "," not in title
    assert "file=/etc%3A%3Aerror" in title
    assert line.count("%25") >= 2


def test_summary_and_outputs_are_appended(tmp_path: Path) -> None:
    summary, outputs = tmp_path / "summary.md", tmp_path / "outputs"
    summary.write_text("before\n")
    environment = {"GITHUB_STEP_SUMMARY": str(summary), "GITHUB_OUTPUT": str(outputs)}
    lines = write_github(report_of([FAULTY]), environment, json_path="a/report.json", html_path="a/report.html")
    assert len(lines) == 1
    assert summary.read_text().startswith("before\n### lossguard")
    assert outputs.read_text() == "verdict=FAIL\nexit-code=1\nreport=a/report.json\nhtml=a/report.html\n"


def test_without_files_nothing_is_written() -> None:
    assert len(write_github(report_of([FAULTY]), {}, json_path="r.json")) == 1
    assert is_github({"GITHUB_ACTIONS": "true"})
    assert not is_github({"GITHUB_ACTIONS": ""})


def test_a_summary_stays_within_its_limit() -> None:
    text = render_markdown(report_of([renamed(FAULTY, f"{at:04d}" + "é" * 200) for at in range(300)]))
    assert len(text.encode()) <= LIMIT_BYTES
    assert text.endswith("the whole report is the JSON and the HTML file)\n")
    assert text.startswith("### lossguard")


@given(st.text(max_size=80))
def test_any_text_stays_text_in_markdown(text: str) -> None:
    shown = plain(text)
    assert "\n" not in shown
    assert not re.search(r"[<>|`*_\[\]@]", shown)
    assert re.sub(r"&(?:amp|lt|gt|#\d+);", "", shown).count("&") == 0
    if text.isprintable():
        assert html.unescape(shown) == text


@pytest.mark.parametrize("text", ["&#124;", "&lt;b&gt;", "&amp;#42;"])
def test_entities_are_shown_as_they_were_served(text: str) -> None:
    assert html.unescape(plain(text)) == text
