"""One JSON, five renderings: the same verdict in the same words, worst first, read back from each of them."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from lossguard.report.html.page import render_html
from lossguard.report.json_report import load_schema
from lossguard.report.junit import render_junit
from lossguard.report.markdown import render_markdown
from lossguard.report.terminal import render_report
from tests.report.sample import judged, renamed, report_of, timed
from tests.report.test_html import parse

HEADLINES = [
    "NOT LOSSLESS  faulty against stock",
    "NOT LOSSLESS  worse against stock",
    "LOSSLESS  fine against stock",
    "FASTER  fine against stock",
]
LINE = "lossguard: FAIL (2 fail, 0 inconclusive, 2 pass) -> exit 1"
CHECKS = {"rate", "event", "structure", "near-tie", "burst", "buckets", "vacuity", "scores"}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    places = [(at, 10 + at % 30) for at in range(40)]
    faulty = judged("faulty", places)
    claims = [renamed(judged(), "fine"), timed("fine"), faulty, renamed(judged("faulty", places[:12]), "worse")]
    made: dict[str, Any] = json.loads(json.dumps(report_of(claims)))
    jsonschema.Draft202012Validator(load_schema()).validate(made)
    return made


def from_json(report: Mapping[str, Any]) -> tuple[str, list[str], set[str]]:
    red = next(claim for claim in report["claims"] if claim["candidate"] == "faulty")
    failing = {check["check"] for check in red["checks"] if check["verdict"] == "FAIL"}
    headlines = sorted((claim["headline"] for claim in report["claims"]), key=HEADLINES.index)
    return report["outcome"]["line"], headlines, failing


def from_terminal(report: Mapping[str, Any]) -> tuple[str, list[str], set[str]]:
    text = render_report(report)
    lines = text.splitlines()
    headlines = [line.split("   ")[0].strip() for line in lines if re.match(r"(NOT |)(LOSSLESS|FASTER)  ", line)]
    red = text[text.index(HEADLINES[0]) : text.index(HEADLINES[1])]
    failing = {row[1] for row in re.finditer(r"^  (\S+) +FAIL\b", red, re.MULTILINE)}
    return lines[-1].split("    report:")[0], headlines, failing


def from_html(report: Mapping[str, Any]) -> tuple[str, list[str], set[str]]:
    page = render_html(report, Path("report.json"))
    parse(page)
    line = re.search(r'<h1 id="verdict"[^>]*><bdi>(.*?)</bdi>', page)
    headlines = re.findall(r'<bdi class="headline">(.*?)</bdi>', page)
    red = page[page.index('id="claim-1"') : page.index('id="claim-2"')]
    failing = set(re.findall(r'<th scope="row">([\w-]+)</th><td class="FAIL">FAIL</td>', red))
    assert line is not None
    return html.unescape(line[1]), [html.unescape(text) for text in headlines], failing


def from_markdown(report: Mapping[str, Any]) -> tuple[str, list[str], set[str]]:
    text = html.unescape(render_markdown(report))
    line = re.search(r"^### (.*)$", text, re.MULTILINE)
    headlines = re.findall(r"^\| \*\*(.*?)\*\* \|", text, re.MULTILINE)
    red = text[text.index("<details>") : text.index("</details>")]
    failing = set(re.findall(r"^\| (\S+) \| FAIL \|", red, re.MULTILINE))
    assert line is not None
    return line[1], headlines, failing


def from_junit(report: Mapping[str, Any]) -> tuple[str, list[str], set[str]]:
    root = ElementTree.fromstring(render_junit(report))
    line = root.find("./testsuite/properties/property[@name='lossguard.outcome']")
    cases = {case.get("name"): case for case in root.iter("testcase")}
    headlines = [
        case.find("./properties/property[@name='lossguard.headline']").get("value") or ""  # type: ignore[union-attr]
        for case in cases.values()
    ]
    failure = cases["faulty/lossless"].find("failure")
    assert line is not None
    assert failure is not None
    failing = {row[1] for row in re.finditer(r"^  (\S+) +FAIL\b", failure.text or "", re.MULTILINE)}
    return line.get("value") or "", sorted(headlines, key=HEADLINES.index), failing


@pytest.mark.parametrize("read", [from_json, from_terminal, from_html, from_markdown, from_junit])
def test_every_form_says_the_same(
    read: Callable[[Mapping[str, Any]], tuple[str, list[str], set[str]]], report: Mapping[str, Any]
) -> None:
    line, headlines, failing = read(report)
    assert line == LINE
    assert headlines == HEADLINES
    assert failing == from_json(report)[2]
    assert failing >= {"event"}
    assert failing < CHECKS


def test_junit_counts_what_is_red(report: Mapping[str, Any]) -> None:
    suite = ElementTree.fromstring(render_junit(report)).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "2", "0")


def test_junit_takes_any_text() -> None:
    claim = judged("bad\x00\ud800]]></failure>", [(3, 10), (4, 10)], lambda *_ids: "\x1b\x00 <&")
    root = ElementTree.fromstring(render_junit(report_of([claim])))
    assert len(list(root.iter("testcase"))) == 1
