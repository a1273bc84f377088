"""The README's output of the demo: its marks, what is cut, and that a wrong verdict is never shown as the demo's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lossguard.demo_targets import Expectation
from lossguard.records import Verdict
from tests.report.sample import judged, renamed, report_of
from tools.readme_demo import END, PICTURE, ROOT, START, WIDTH, console_text, replace_block, table_rows

FAULTY = judged("wrong-token", [(at, 10 + at % 30) for at in range(40)])
EXPECTED = (
    Expectation(candidate="other-batches", verdict=Verdict.PASS),
    Expectation(candidate="wrong-token", verdict=Verdict.FAIL, failing_check="event"),
)


@pytest.fixture
def report() -> dict[str, Any]:
    claims = [renamed(judged(), "other-batches"), FAULTY]
    made: dict[str, Any] = json.loads(json.dumps(report_of(claims, folder="elsewhere/run-0008")))
    return made


def test_the_text_is_that_of_the_run(report: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.readme_demo.demo_target", lambda _name: type("Target", (), {"expected": EXPECTED}))
    lines = console_text(report).splitlines()
    assert lines[0].startswith("thresholds from stock")
    assert any(line.startswith("NOT LOSSLESS  wrong-token against stock") for line in lines)
    assert sum(line.startswith("  request r-") for line in lines) == 1
    assert "  see it again: lossguard recheck .lossguard/run-0008 --candidate wrong-token" in "\n".join(lines)
    assert lines[-1].split() == ["wrong-token", "FAIL", "by", "event", *lines[-1].split()[4:]]
    assert max(map(len, lines)) <= WIDTH


def test_a_wrong_verdict_is_no_demo(report: dict[str, Any]) -> None:
    assert len(table_rows(report, EXPECTED)) == 3
    for other in ({"verdict": Verdict.PASS}, {"verdict": Verdict.FAIL, "failing_check": "structure"}):
        with pytest.raises(SystemExit, match="wrong-token is FAIL"):
            table_rows(report, [Expectation(candidate="wrong-token", **other)])


def test_only_what_stands_between_the_marks_changes() -> None:
    page = f"before\n{START}```\nold\n```\n{END}\nafter\n"
    assert replace_block(page, "new\n") == f"before\n{START}```\nnew\n```\n{END}\nafter\n"
    with pytest.raises(SystemExit):
        replace_block("no marks\n", "new\n")


def test_the_readme_has_output_and_picture() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = readme.partition(START)[2].partition(END)[0]
    assert "NOT LOSSLESS  wrong-token against stock" in block
    assert block.count("\n") > 20
    picture = Path(ROOT / PICTURE).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 200_000
    assert f"({PICTURE})" in readme
