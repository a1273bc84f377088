"""compare: what got worse, what cannot be told, and what else differs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from lossguard.cli.main import run
from lossguard.report.comparison import Comparison, compare_reports, render_comparison
from tests.report.sample import judged, renamed, report_of, timed

GOOD = renamed(judged(), "x")
BAD = renamed(judged("x", [(at, 10 + at % 30) for at in range(40)]), "x")
SPEED = timed("x")


def compared(before: dict[str, Any], after: dict[str, Any]) -> Comparison:
    return compare_reports(json.loads(json.dumps(before)), json.loads(json.dumps(after)))


def with_verdict(report: dict[str, Any], verdict: str) -> dict[str, Any]:
    changed = copy.deepcopy(report)
    changed["claims"][0]["verdict"] = verdict
    return changed


@pytest.mark.parametrize(
    ("before", "after", "change", "code"),
    [
        ("PASS", "PASS", "same", 0),
        ("FAIL", "FAIL", "same", 0),
        ("PASS", "FAIL", "worse", 1),
        ("INCONCLUSIVE", "FAIL", "worse", 1),
        ("PASS", "INCONCLUSIVE", "unsure", 10),
        ("FAIL", "INCONCLUSIVE", "unsure", 10),
        ("FAIL", "PASS", "better", 0),
        ("INCONCLUSIVE", "PASS", "better", 0),
    ],
)
def test_every_pair_of_verdicts(before: str, after: str, change: str, code: int) -> None:
    report = report_of([GOOD])
    found = compared(with_verdict(report, before), with_verdict(report, after))
    assert [claim.change for claim in found.claims] == [change]
    assert found.exit_code == code


def test_a_claim_that_is_gone_is_inconclusive_and_a_new_one_is_not() -> None:
    one, two = report_of([GOOD]), report_of([GOOD, SPEED])
    assert compared(two, one).exit_code == 10
    assert compared(one, two).exit_code == 0
    assert [claim.change for claim in compared(two, one).claims] == ["same", "gone"]


def test_two_reports_without_claims_show_nothing() -> None:
    empty = {**report_of([GOOD]), "claims": []}
    assert compared(empty, empty).exit_code == 10


def test_a_gain_that_fell_beyond_both_bounds_is_worse() -> None:
    before = report_of([SPEED])
    after = copy.deepcopy(before)
    after["claims"][0] |= {"gain": 0.05, "gain_lower_bound": 0.03, "gain_upper_bound": 0.07}
    assert compared(before, after).exit_code == 1
    after["claims"][0]["gain_upper_bound"] = 0.11
    assert compared(before, after).exit_code == 0


@pytest.mark.parametrize(
    ("place", "value"),
    [(("integrity", "rules_sha256"), "c" * 64), (("prompts", "sha256"), "c" * 64), (("run", "temperature"), 0.7)],
)
def test_other_rules_or_prompts_make_no_verdict(place: tuple[str, str], value: object) -> None:
    before = report_of([GOOD])
    after = copy.deepcopy(with_verdict(before, "FAIL"))
    after[place[0]][place[1]] = value
    found = compared(before, after)
    assert found.exit_code == 10
    assert len(found.obstacles) == 1


def test_another_version_is_told_and_no_obstacle() -> None:
    before = report_of([GOOD])
    after = copy.deepcopy(before)
    after["fingerprint"]["candidates"]["x"]["engine"]["version"] = "3"
    found = compared(before, after)
    assert found.exit_code == 0
    assert found.notes == ("candidates.x.engine.version: 2 before, 3 after",)


def test_the_numbers_that_moved_are_shown() -> None:
    found = compared(report_of([GOOD]), report_of([BAD]))
    text = render_comparison(found)
    assert "worse   x/lossless: LOSSLESS  x against stock  ->  NOT LOSSLESS  x against stock" in text
    assert "event: PASS 0  ->  FAIL 40" in text
    assert "scores" not in text, "what is the same is not shown"
    assert text.endswith("compare: a claim got worse -> exit 1")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, claim in (("a", GOOD), ("b", BAD)):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(report_of([claim])))
    out = tmp_path / "out.json"
    assert run(["compare", str(files[0]), str(files[1]), "--json", str(out)]) == 1
    assert json.loads(out.read_text())["claims"][0]["change"] == "worse"
    assert run(["compare", str(files[1]), str(files[0])]) == 0
    assert "nothing got worse -> exit 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "code"), [("{", "LG1801"), ("[]", "LG1801"), ('{"a": 1}', "LG1801"), ('{"schema": "x"}', "LG1802")]
)
def test_what_is_no_report_is_refused(text: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(text)
    assert run(["compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 4
    assert code in capsys.readouterr().err


def test_a_report_of_another_form_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of([GOOD])
    (tmp_path / "a.json").write_text(json.dumps(report))
    (tmp_path / "b.json").write_text(json.dumps({**report, "claims": [{}]}))
    for names in (("a.json", "b.json"), ("b.json", "a.json")):
        assert run(["compare", *(str(tmp_path / name) for name in names)]) == 3
        error = capsys.readouterr().err
        assert "LG0606" in error
        assert "b.json is damaged" in error
