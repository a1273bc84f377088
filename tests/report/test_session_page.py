"""The page of a pytest session: an index, the session's own words, pictures from the runs, nothing that runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest

from lossguard.pytest_plugin.session_report import load_session_schema
from lossguard.records import Claim
from lossguard.report.html.session import render_session
from lossguard.report.json_report import claim_to_json
from tests.report.sample import judged, renamed, report_of
from tests.report.test_html import HOSTILE, assert_harmless, parse

pytest.importorskip("matplotlib")
FAULTY = judged("faulty", [(at, 10 + at % 30) for at in range(40)])
FINE = renamed(judged(), "fine")
COUNTS = ("pass", "fail", "error", "inconclusive", "lost", "not_run", "skipped", "xfail", "recorded", "kept")


def entry(name: str, status: str, claim: Claim | None = None, *, reason: str = "made up") -> dict[str, Any]:
    """A claim as a session's JSON has it."""
    return {
        "id": name,
        "status": status,
        "reason": reason,
        "test": "tests/test_it.py::test_one",
        "worker": "gw0",
        "candidate": claim.candidate if claim else "",
        "baseline": claim.baseline if claim else "",
        "baseline_source": "record" if claim else "",
        "baseline_reason": "stock.safetensors" if claim else "",
        "report_path": "/runs/run-0001/report.json" if claim else "",
        "evidence": json.loads(json.dumps(claim_to_json(claim))) if claim else {},
    }


def session_of(*claims: Mapping[str, Any], exit_code: int = 1, **more: Any) -> dict[str, Any]:
    """A session's JSON."""
    outcome = {"exit_code": exit_code, "exit_reason": "made up", "counts": dict.fromkeys(COUNTS, 0), "recorded": 0}
    session = {
        "schema": "https://lossguard/schema/session-1.json",
        "schema_version": "1.2",
        "producer": {"name": "lossguard", "version": "0.1"},
        "run": {
            "seed": None,
            "budget": "standard",
            "baseline": "stock",
            "update": "none",
            "advisory": False,
            "required": None,
            "command": ["--lossguard-baseline=stock", HOSTILE],
        },
        "outcome": {**outcome, "line": f"lossguard: FAILED (made up) -> exit {exit_code}"},
        "claims": list(claims),
        "lost_tests": [],
        "tests_not_run": [],
        "facts": {},
        "sections": {},
        **more,
    }
    jsonschema.Draft202012Validator(load_session_schema()).validate(session)
    return session


def test_the_index_comes_first_and_leads_to_every_claim() -> None:
    session = session_of(
        entry("tree/f", "FAIL", FAULTY, reason="event: 40 requests"),
        entry("tree/lost", "LOST", reason="no report of it arrived"),
        entry("tree/p", "PASS", FINE, reason="8 checks"),
        lost_tests=["tests/test_it.py::test_two"],
    )
    parsed = parse(render_session(session, {}))
    order = [
        "lossguard: FAILED (made up) -> exit 1",
        "decided by",
        "tree/f",
        "event: 40 requests",
        "tree/lost",
        "no report of it arrived",
        "tree/p",
        "8 checks",
        "tests/test_it.py::test_two",
        "NOT LOSSLESS  faulty against stock",
        "request r-0000, position 10: served",
        "no verdict: no report of it arrived",
        "LOSSLESS  fine against stock",
    ]
    places, start = [], 0
    for words in order:
        start = parsed.text.index(words, start)
        places.append(start)
    assert places == sorted(places)
    links = [attributes["href"] for tag, attributes in parsed.tags if tag == "a"]
    assert links == ["#claim-1", "#claim-2", "#claim-3"]
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert {"claim-1", "claim-2", "claim-3"} <= set(ids)
    assert len(ids) == len(set(ids))


def test_what_looks_again_names_the_run_of_the_claim() -> None:
    text = parse(render_session(session_of(entry("tree/f", "FAIL", FAULTY)), {})).text
    assert "lossguard recheck /runs/run-0001 --candidate faulty --request r-0000 --position 10" in text
    assert "record: stock.safetensors" in text


def pictures(page: str) -> list[str | None]:
    return [attributes["aria-label"] for tag, attributes in parse(page).tags if tag == "svg"]


def test_the_report_of_the_run_lends_its_pictures() -> None:
    session = session_of(entry("tree/f", "FAIL", FAULTY))
    run = json.loads(json.dumps(report_of([FAULTY])))
    page = render_session(session, {"tree/f": run})
    assert len(pictures(page)) == 4
    assert "without pictures" not in page
    assert "engine.version: 1 in stock, 2 here" in page


def test_a_run_that_says_something_else_lends_nothing() -> None:
    """Its file may be another run's by now."""
    session = session_of(entry("tree/f", "FAIL", FAULTY))
    run = json.loads(json.dumps(report_of([judged("faulty", [(3, 10)])])))
    page = render_session(session, {"tree/f": run})
    assert pictures(page) == []
    assert "no report of the run, or none in it): tree/f" in parse(page).text


def test_the_pictures_of_a_large_session_are_those_of_the_worst_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lossguard.report.html.session.NUM_PICTURED", 1)
    claims = [entry(f"tree/{at}", "FAIL", FAULTY) for at in range(3)]
    run = json.loads(json.dumps(report_of([FAULTY])))
    page = render_session(session_of(*claims), {claim["id"]: run for claim in claims})
    assert len(pictures(page)) == 4
    assert ": tree/1, tree/2" in parse(page).text


@pytest.mark.parametrize(
    ("statuses", "exit_code", "colour"),
    [
        (["FAIL", "PASS"], 1, "FAIL"),
        (["LOST", "PASS"], 1, "INCONCLUSIVE"),
        (["PASS", "XFAIL"], 0, "PASS"),
        (["PASS"], 1, "INCONCLUSIVE"),
        ([], 5, "INCONCLUSIVE"),
    ],
)
def test_green_is_only_what_passed(statuses: list[str], exit_code: int, colour: str) -> None:
    session = session_of(*(entry(f"c/{status}", status) for status in statuses), exit_code=exit_code)
    heads = [attributes["class"] for tag, attributes in parse(render_session(session, {})).tags if tag == "h1"]
    assert heads == [colour]


def test_hostile_names_and_texts_do_nothing() -> None:
    hostile = renamed(judged("x", [(3, 10), (4, 11)], lambda *_ids: HOSTILE), HOSTILE[:40])
    claims = [entry("tree/f", "INCONCLUSIVE", hostile, reason=HOSTILE), entry("tree/g", "ERROR", reason="A" * 10_000)]
    session = session_of(*claims, lost_tests=[HOSTILE])
    rendered = render_session(session, {})
    parsed = parse(rendered)
    assert_harmless(parsed)
    assert "\u202e" not in rendered
    assert "<script>alert(1)</script>" in parsed.text
    assert "A" * 2001 not in rendered


def test_the_same_session_gives_the_same_bytes() -> None:
    session = session_of(entry("tree/f", "FAIL", FAULTY))
    run = json.loads(json.dumps(report_of([FAULTY])))
    assert render_session(session, {"tree/f": run}) == render_session(json.loads(json.dumps(session)), {"tree/f": run})


def test_a_status_that_is_not_the_verdict_of_the_run_says_why() -> None:
    text = parse(render_session(session_of(entry("tree/f", "XFAIL", FAULTY, reason="expected to fail: rate")), {})).text
    assert "decided by: expected to fail: rate" in text
    assert "decided by: " not in parse(render_session(session_of(entry("tree/f", "FAIL", FAULTY)), {})).text
